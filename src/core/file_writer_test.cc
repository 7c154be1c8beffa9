#include "kvik/core/file_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace kvik {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// A folder of its own for each test.
class FileWriterTest : public testing::Test {
 protected:
  FileWriterTest() {
    std::string pattern = (fs::temp_directory_path() / "kvik-writer-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~FileWriterTest() override {
    std::error_code error;
    fs::permissions(folder_, fs::perms::owner_all, error);
    fs::remove_all(folder_, error);
  }

  std::string path(const std::string& name = "file") const { return (folder_ / name).string(); }
  static Status put(const std::string& path, const std::string& text) {
    return write_file(path, std::as_bytes(std::span(text)));
  }
  static std::string content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.insert(entry.path().filename());
    return names;
  }
  void expect_refused(const std::string& at, const std::string& why) {
    const std::set<std::string> before = names();
    EXPECT_THAT(put(at, "new").to_string(), HasSubstr(why));
    EXPECT_THAT(check_writable(at).to_string(), HasSubstr(why));
    EXPECT_EQ(names(), before);
  }

  fs::path folder_;
};

TEST_F(FileWriterTest, WritesANewFileAndReplacesARegularOne) {
  ASSERT_TRUE(put(path(), "first").ok());
  EXPECT_EQ(content(path()), "first");
  ASSERT_TRUE(put(path(), "").ok());
  EXPECT_EQ(content(path()), "");
  EXPECT_EQ(names(), (std::set<std::string>{"file"}));
}

TEST_F(FileWriterTest, KeepsThePermissionsOfTheFileThatWasThere) {
  ASSERT_TRUE(put(path(), "first").ok());
  for (const mode_t mode : {0600U, 0640U, 0755U}) {
    ASSERT_EQ(chmod(path().c_str(), mode), 0);
    ASSERT_TRUE(put(path(), "next").ok());
    struct stat about = {};
    ASSERT_EQ(stat(path().c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 07777, mode);
  }
}

TEST_F(FileWriterTest, RefusesWhatIsNoRegularFileAndLeavesItThere) {
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0666), 0);
  fs::create_directory(path("folder"));
  ASSERT_TRUE(put(path("victim"), "precious").ok());
  fs::create_symlink(path("victim"), path("link"));
  fs::create_symlink(path("nowhere"), path("dangling"));
  fs::create_symlink("/dev/null", path("null"));
  expect_refused(path("fifo"), "fifo: is a FIFO, which is not replaced");
  expect_refused(path("folder"), "folder: is a folder");
  expect_refused(path("folder") + "/", "this names no file");
  expect_refused(path("."), "this names no file");
  expect_refused("", "this names no file");
  for (const char* link : {"link", "dangling", "null"}) {
    expect_refused(path(link), "is a symbolic link");
    EXPECT_TRUE(fs::is_symlink(path(link)));
  }
  EXPECT_EQ(content(path("victim")), "precious");
  EXPECT_FALSE(fs::exists(path("nowhere")));
  expect_refused("/dev/null", "/dev/null: is a device");
  expect_refused(path("no/such/folder"), "cannot open the folder (No such file or directory)");
  expect_refused(path("victim/file"), "cannot open the folder (Not a directory)");
}

TEST_F(FileWriterTest, TemporaryNamesAreNotToBeGuessedAndPlantedFilesAreNotTouched) {
  std::set<std::string> seen;
  for (int i = 0; i < 20; ++i) {
    Result<FileWriter> file = FileWriter::create(path());
    ASSERT_TRUE(file.ok());
    const std::set<std::string> now = names();
    ASSERT_EQ(now.size(), 1U);
    EXPECT_TRUE(seen.insert(*now.begin()).second) << "a name came twice";
    EXPECT_EQ(now.begin()->size(), std::string(".file.").size() + 24 + 4);
  }
  EXPECT_TRUE(names().empty()) << "what is not committed goes";
  // Names that other programs use for a file on its way.
  for (const char* ending : {".new", ".tmp", ".part", "~"}) {
    ASSERT_TRUE(put(path("victim"), "precious").ok());
    fs::create_symlink(path("victim"), path(std::string("file") + ending));
  }
  ASSERT_TRUE(put(path(), "text").ok());
  EXPECT_EQ(content(path("victim")), "precious");
}

TEST_F(FileWriterTest, ThingsThatComeToLieThereMeanwhileAreNotReplaced) {
  Result<FileWriter> file = FileWriter::create(path());
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(mkfifo(path().c_str(), 0666), 0);
  EXPECT_THAT(file->commit().message(), HasSubstr("is a FIFO"));
  file = Status(StatusCode::cancelled, "drops the writer");
  EXPECT_EQ(names(), (std::set<std::string>{"file"}));
  EXPECT_TRUE(fs::is_fifo(path()));
}

TEST_F(FileWriterTest, LongNamesAreWritten) {
  const std::string name(255, 'n');
  ASSERT_TRUE(put(path(name), "text").ok());
  EXPECT_EQ(content(path(name)), "text");
  expect_refused(path(name + "n"), "File name too long");
}

// Limits, and users who are not root, in a process of its own.
template <class Check>
void in_child(const Check& check) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _Exit(check() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_F(FileWriterTest, AFileThatDoesNotFitLeavesTheOldOneAndNothingElse) {
  ASSERT_TRUE(put(path(), "old").ok());
  in_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {1000, 1000};
    setrlimit(RLIMIT_FSIZE, &limit);
    const Status status = put(path(), std::string(5000, 'x'));
    return status.code() == StatusCode::io_error &&
           status.message().find("File too large") != std::string::npos;
  });
  EXPECT_EQ(content(path()), "old");
  EXPECT_EQ(names(), (std::set<std::string>{"file"}));
}

TEST_F(FileWriterTest, AFullDiskLeavesTheOldFile) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full";
  Result<FileWriter> file = FileWriter::create("/dev/full");
  EXPECT_THAT(file.status().message(), HasSubstr("is a device"));
}

TEST_F(FileWriterTest, FilesAndFoldersThatMayNotBeWrittenAreRefused) {
  ASSERT_TRUE(put(path(), "old").ok());
  ASSERT_EQ(chmod(path().c_str(), 0444), 0);
  fs::create_directory(path("shut"));
  ASSERT_TRUE(put(path("shut/file"), "old").ok());
  ASSERT_EQ(chmod(path("shut").c_str(), 0555), 0);
  ASSERT_EQ(chmod(folder_.c_str(), 0777), 0);
  in_child([&] {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return false;
    return put(path(), "new").to_string().find("may not be written") != std::string::npos &&
           !put(path("shut/other"), "new").ok() && !put(path("shut/file"), "new").ok();
  });
  EXPECT_EQ(content(path()), "old");
  EXPECT_EQ(content(path("shut/file")), "old");
  ASSERT_EQ(chmod(path("shut").c_str(), 0755), 0);
  EXPECT_EQ(names(), (std::set<std::string>{"file", "shut"}));
}

TEST_F(FileWriterTest, ManyWritersLeaveOneWholeFile) {
  constexpr int kWriters = 8;
  constexpr size_t kSize = 100000;
  std::vector<pid_t> children;
  for (int i = 0; i < kWriters; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int round = 0; round < 10; ++round) {
        if (!put(path(), std::string(kSize, static_cast<char>('a' + i))).ok()) _Exit(1);
        const std::string seen = content(path());
        if (seen.size() != kSize || seen != std::string(kSize, seen[0])) _Exit(2);
      }
      _Exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  EXPECT_EQ(names(), (std::set<std::string>{"file"}));
}

TEST_F(FileWriterTest, AProcessKilledWhileWritingLeavesTheOldFileOrTheNew) {
  const std::string old_text(50000, 'o');
  const std::string new_text(50000, 'n');
  for (int round = 0; round < 30; ++round) {
    ASSERT_TRUE(put(path(), old_text).ok());
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (;;) static_cast<void>(put(path(), new_text).ok());
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    const std::string seen = content(path());
    ASSERT_TRUE(seen == old_text || seen == new_text) << seen.size();
  }
}

}  // namespace
}  // namespace kvik
