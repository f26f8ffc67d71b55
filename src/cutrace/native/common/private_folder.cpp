#include "private_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

namespace cutrace {
namespace {

bool belongs_to_user(const std::string& folder) {
  struct stat status {};
  return ::stat(folder.c_str(), &status) == 0 && status.st_uid == ::geteuid();
}

// Opens a folder that only this user can enter. Returns -1 and a sentence in `error` for another one.
int open_private(const std::string& path, std::string& error) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) {
    error = "cannot use the folder " + path + " (" + std::strerror(errno) + ")";
    return -1;
  }
  struct stat status {};
  if (::fstat(fd, &status) == 0 && status.st_uid == ::geteuid() && (status.st_mode & 077) == 0) return fd;
  ::close(fd);
  error = "the folder " + path + " does not belong to this user alone; remove it";
  return -1;
}

bool use_folder(const std::string& path, const UseFolder& use, std::string& error) {
  const int directory = open_private(path, error);
  if (directory < 0) return false;
  const bool used = use(directory, path, error);
  ::close(directory);
  return used;
}

std::vector<std::string> named_folders(const std::string& uid) {
  std::vector<std::string> folders;
  const char* runtime = ::secure_getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime == '/') folders.push_back(runtime);
  folders.push_back("/run/user/" + uid);
  // Root could make its folder inside the folder of another user, and that user could then make no folder.
  std::erase_if(folders, [](const std::string& folder) { return !belongs_to_user(folder); });
  for (std::string& folder : folders) folder += "/cutrace";
  folders.push_back("/tmp/cutrace-" + uid);
  return folders;
}

// The existing folders with random names, of this user or other users.
std::vector<std::string> random_folders(const std::string& prefix) {
  std::vector<std::string> folders;
  DIR* const entries = ::opendir("/tmp");
  if (entries == nullptr) return folders;
  while (const dirent* entry = ::readdir(entries))
    if (std::string_view(entry->d_name).starts_with(prefix)) folders.push_back(std::string("/tmp/") + entry->d_name);
  ::closedir(entries);
  std::ranges::sort(folders);
  return folders;
}

}  // namespace

bool in_private_folder(const UseFolder& use, std::string& error) {
  const std::string uid = std::to_string(::geteuid());
  for (const std::string& folder : named_folders(uid)) {
    ::mkdir(folder.c_str(), 0700);  // fails if the folder exists
    if (use_folder(folder, use, error)) return true;
  }
  const std::string prefix = "cutrace-" + uid + "-";
  for (const std::string& folder : random_folders(prefix))
    if (use_folder(folder, use, error)) return true;
  std::string made = "/tmp/" + prefix + "XXXXXX";
  if (::mkdtemp(made.data()) != nullptr) return use_folder(made, use, error);
  error = "cannot make a folder in /tmp (" + std::string(std::strerror(errno)) + ")";
  return false;
}

}  // namespace cutrace
