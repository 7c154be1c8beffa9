#include "kvik/core/file_writer.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "kvik/core/check.h"

namespace kvik {
namespace {

// Room for the dot, the random part and the ending within the 255 bytes of a name.
constexpr size_t kKeptNameBytes = 200;

Status failed(const std::string& path, const std::string& what) {
  return {StatusCode::io_error, path + ": " + what + " (" + std::strerror(errno) + ")"};
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a symbolic link";
}

// What a path says: the folder, and the name in it.
struct Place {
  std::string folder, name;
};

Result<Place> place_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  Place place;
  place.name = slash == std::string::npos ? path : path.substr(slash + 1);
  place.folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (place.name.empty() || place.name == "." || place.name == ".." ||
      path.find('\0') != std::string::npos) {
    return invalid_argument((path.empty() ? "\"\"" : path) + ": this names no file to write");
  }
  return place;
}

// Permissions of the regular file that is there; none: there is nothing.
Result<std::optional<mode_t>> look_at(int folder, const std::string& name,
                                      const std::string& path) {
  struct stat there = {};
  if (fstatat(folder, name.c_str(), &there, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return std::optional<mode_t>();
    return failed(path, "cannot look at it");
  }
  if (!S_ISREG(there.st_mode)) {
    return invalid_argument(path + ": is " + kind_of(there.st_mode) +
                            ", which is not replaced; name a regular file");
  }
  if (faccessat(folder, name.c_str(), W_OK, AT_EACCESS) != 0) {
    return failed(path, "may not be written");
  }
  return std::optional<mode_t>(there.st_mode & 07777);
}

std::optional<std::string> random_name(const std::string& name) {
  std::array<unsigned char, 12> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return std::nullopt;
  }
  std::string random = "." + name.substr(0, kKeptNameBytes) + ".";
  for (const unsigned char byte : bytes) {
    for (const int digit : {byte >> 4, byte & 15}) random += "0123456789abcdef"[digit];
  }
  return random + ".tmp";
}

}  // namespace

struct FileWriter::Impl {
  std::string path, name;
  std::string temporary;  // empty: there is none
  int folder = -1;
  int fd = -1;
  bool failed = false;

  ~Impl() {
    if (fd >= 0) ::close(fd);
    if (!temporary.empty()) unlinkat(folder, temporary.c_str(), 0);
    if (folder >= 0) ::close(folder);
  }
};

FileWriter::FileWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FileWriter::FileWriter(FileWriter&&) noexcept = default;
FileWriter& FileWriter::operator=(FileWriter&&) noexcept = default;
FileWriter::~FileWriter() = default;

Result<FileWriter> FileWriter::create(const std::string& path) {
  Result<Place> place = place_of(path);
  if (!place.ok()) return place.status();
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  impl->name = place->name;
  impl->folder = ::open(place->folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // A folder that may be written and not listed cannot be flushed either, and serves all the same.
  if (impl->folder < 0 && errno == EACCES) {
    impl->folder = ::open(place->folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  }
  if (impl->folder < 0) return failed(path, "cannot open the folder");
  const Result<std::optional<mode_t>> there = look_at(impl->folder, impl->name, path);
  if (!there.ok()) return there.status();
  const std::optional<std::string> temporary = random_name(impl->name);
  if (!temporary) return failed(path, "no random name for a file beside it");
  impl->fd = openat(impl->folder, temporary->c_str(),
                    O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (impl->fd < 0) return failed(path, "cannot make a file beside it");
  impl->temporary = *temporary;
  if (*there && fchmod(impl->fd, **there) != 0) return failed(path, "cannot keep its permissions");
  return FileWriter(std::move(impl));
}

Status FileWriter::write(std::span<const std::byte> bytes) {
  KVIK_CHECK(impl_ != nullptr && impl_->fd >= 0, "the file was committed or moved from");
  while (!bytes.empty() && !impl_->failed) {
    const ssize_t written = ::write(impl_->fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    impl_->failed = written < 0;
    if (written > 0) bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return impl_->failed ? failed(impl_->path, "cannot write") : Status();
}

Status FileWriter::commit() {
  KVIK_CHECK(impl_ != nullptr && impl_->fd >= 0, "the file was committed or moved from");
  const std::string& path = impl_->path;
  if (impl_->failed) return {StatusCode::io_error, path + ": was not written whole"};
  if (fsync(impl_->fd) != 0) return failed(path, "cannot flush");
  if (::close(std::exchange(impl_->fd, -1)) != 0) return failed(path, "cannot close");
  if (Status now = look_at(impl_->folder, impl_->name, path).status(); !now.ok()) return now;
  if (renameat(impl_->folder, impl_->temporary.c_str(), impl_->folder, impl_->name.c_str()) != 0) {
    return failed(path, "cannot put the new file in its place");
  }
  impl_->temporary.clear();
  // The name is there; only a crash of the machine could still lose it, on file systems that cannot
  // flush a folder.
  fsync(impl_->folder);
  return {};
}

Status write_file(const std::string& path, std::span<const std::byte> bytes) {
  Result<FileWriter> file = FileWriter::create(path);
  if (!file.ok()) return file.status();
  if (Status status = file->write(bytes); !status.ok()) return status;
  return file->commit();
}

Status check_writable(const std::string& path) { return FileWriter::create(path).status(); }

}  // namespace kvik
