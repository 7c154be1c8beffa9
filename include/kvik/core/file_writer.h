// The only way in which Kvik writes a file: whole, or not at all.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "kvik/core/export.h"
#include "kvik/core/status.h"

namespace kvik {

// A file that comes into being under a name of its own, in the folder of `path`, and takes the
// place of what `path` holds when it is complete and on disk. Whoever reads `path` sees the old
// content or the new, also after a crash; several writers at once do not meet, the last one to
// commit stays. The name is not to be guessed, and nothing that lies there already is opened or
// followed. Move-only. Threads: one at a time.
class KVIK_API FileWriter {
 public:
  // Errors, nothing touched: invalid_argument where `path` names something else than a regular file
  // (a folder, device, FIFO, socket or symbolic link); io_error naming the path and the system's
  // reason, also for a file that the process may not write.
  static Result<FileWriter> create(const std::string& path);

  FileWriter(FileWriter&&) noexcept;
  FileWriter& operator=(FileWriter&&) noexcept;
  // Removes what was written, unless it was committed.
  ~FileWriter();

  // Appends. Errors: io_error (no room, ...); the file cannot be committed any more.
  Status write(std::span<const std::byte> bytes);

  // Flushes the file to the disk and puts it in the place of `path`, with the permissions of the
  // file that was there. Errors: io_error, what was there stays; invalid_argument as create's,
  // where something else has come to lie there meanwhile. Call it once, last.
  Status commit();

 private:
  struct Impl;
  explicit FileWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The three steps in one. Errors: as FileWriter's.
KVIK_API Status write_file(const std::string& path, std::span<const std::byte> bytes);

// Whether write_file(path, ..) can begin: what create() refuses is refused, nothing is left behind.
// For commands that compute for minutes before they write.
KVIK_API Status check_writable(const std::string& path);

}  // namespace kvik
