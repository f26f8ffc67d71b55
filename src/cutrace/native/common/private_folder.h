// The folder of a user for shared files of cutrace's processes: sockets of standby, locks of GPUs.
//
// Only that user can enter it. It is the first of these folders that the user has or can make:
//
//   $XDG_RUNTIME_DIR/cutrace   if that variable names a folder of the user
//   /run/user/UID/cutrace
//   /tmp/cutrace-UID
//   /tmp/cutrace-UID-RANDOM    if another user has taken the name above; nobody can foresee this one
//
// It does not depend on TMPDIR, which may differ between two processes of a user. Python has the same rule:
// cutrace/collect/private_folder.py.
#pragma once

#include <functional>
#include <string>

namespace cutrace {

// Uses an open folder. On failure returns false and leaves a sentence in `error`.
using UseFolder = std::function<bool(int directory, const std::string& path, std::string& error)>;

// Calls `use` with one folder after the other until a call succeeds. If no call succeeds, returns false and leaves the last
// reason in `error`.
bool in_private_folder(const UseFolder& use, std::string& error);

}  // namespace cutrace
