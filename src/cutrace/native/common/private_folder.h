// The folder of a user for files by which processes of cutrace find each other: sockets of standby, locks of GPUs.
//
// Only that user can enter it. It is the first of these that the user has or can make:
//
//   $XDG_RUNTIME_DIR/cutrace   if that variable names a folder of the user
//   /run/user/UID/cutrace
//   /tmp/cutrace-UID
//   /tmp/cutrace-UID-RANDOM    if another user has taken the name above; nobody can foresee this one
//
// It does not depend on TMPDIR, which two processes of a user may have set differently. Python has the same rule:
// cutrace/collect/private_folder.py.
#pragma once

#include <functional>
#include <string>

namespace cutrace {

// Uses an open folder. Returns false and leaves a sentence in `error` if it could not.
using UseFolder = std::function<bool(int directory, const std::string& path, std::string& error)>;

// Calls `use` with one folder after the other until one can be used. False when none can; `error` has the last reason.
bool in_private_folder(const UseFolder& use, std::string& error);

}  // namespace cutrace
