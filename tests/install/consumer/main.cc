// Uses what an installed kvik offers, and fails when it does not work.
#include <kvik/core/buffer.h>
#include <kvik/core/dtype.h>
#include <kvik/core/status.h>
#include <kvik/core/thread_team.h>

#include <atomic>
#include <cstdio>

int main() {
  kvik::Result<kvik::Buffer> buffer = kvik::Buffer::reserve(1 << 20);
  if (!buffer.ok()) {
    std::fprintf(stderr, "%s\n", buffer.status().to_string().c_str());
    return 1;
  }
  if (const kvik::Status status = buffer->commit(100); !status.ok()) return 1;
  if (buffer->commit(int64_t{1} << 40).code() != kvik::StatusCode::out_of_memory) return 1;

  kvik::Result<kvik::ThreadTeam> team = kvik::ThreadTeam::create(3);
  if (!team.ok()) return 1;
  std::atomic<int> sum{0};
  team->run([&](int thread_idx) { sum += thread_idx + 1; });
  if (sum != 6) return 1;
  if (kvik::dtype_name(kvik::DType::bf16) != "bf16") return 1;
  std::puts("kvik works");
  return 0;
}
