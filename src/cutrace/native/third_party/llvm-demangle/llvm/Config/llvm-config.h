// Not part of LLVM: DemangleConfig.h includes this file, and needs nothing from it.
