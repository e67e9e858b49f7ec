// A limit of what Flight takes to unpack compressed record batches (decision 503).
//
// Flight reads a batch before Python sees it. This definition of IpcReadOptions::Defaults is found
// before Arrow's, as its library is loaded first, and differs in the memory: all batches together
// are given so many bytes, and then none. Batches that are not compressed stay in the message that
// brought them and take nothing. Built without type information, which is in Arrow's library.

#include <atomic>
#include <cstdint>
#include <string>

#include "arrow/ipc/options.h"
#include "arrow/memory_pool.h"
#include "arrow/status.h"
#include "originals.h"

namespace {

std::atomic<int64_t> unpacked_bytes_max{INT64_MAX};
constexpr int64_t kMoreThanThereIs = INT64_MAX - 4096;

class LimitedPool : public arrow::MemoryPool {
 public:
  explicit LimitedPool(arrow::MemoryPool* pool) : pool_(pool) {}

  arrow::Status Allocate(int64_t size, int64_t alignment, uint8_t** out) override {
    if (!Take(size)) return pool_->Allocate(kMoreThanThereIs, alignment, out);
    arrow::Status status = pool_->Allocate(size, alignment, out);
    if (!status.ok()) used_ -= size;
    return status;
  }

  arrow::Status Reallocate(int64_t old_size, int64_t new_size, int64_t alignment,
                           uint8_t** buffer) override {
    int64_t more = new_size - old_size;
    if (!Take(more)) return pool_->Reallocate(old_size, kMoreThanThereIs, alignment, buffer);
    arrow::Status status = pool_->Reallocate(old_size, new_size, alignment, buffer);
    if (!status.ok()) used_ -= more;
    return status;
  }

  void Free(uint8_t* buffer, int64_t size, int64_t alignment) override {
    pool_->Free(buffer, size, alignment);
    used_ -= size;
  }

  int64_t bytes_allocated() const override { return used_; }
  int64_t max_memory() const override { return pool_->max_memory(); }
  int64_t total_bytes_allocated() const override { return pool_->total_bytes_allocated(); }
  int64_t num_allocations() const override { return pool_->num_allocations(); }
  std::string backend_name() const override { return pool_->backend_name(); }

 private:
  bool Take(int64_t size) {
    int64_t most = unpacked_bytes_max;
    if (size > most) return false;  // sizes are the sender's: they are not added before this
    if ((used_ += size) <= most || size <= 0) return true;
    used_ -= size;
    return false;
  }

  arrow::MemoryPool* pool_;
  std::atomic<int64_t> used_{0};
};

}  // namespace

extern "C" __attribute__((visibility("default"))) void rezone_limits_of_unpacking(int64_t bytes) {
  unpacked_bytes_max = bytes;
}

namespace arrow::ipc {

IpcReadOptions IpcReadOptions::Defaults() {
  static const auto original = reinterpret_cast<IpcReadOptions (*)()>(
      Original("libarrow.so." ARROW_SO_VERSION, "_ZN5arrow3ipc14IpcReadOptions8DefaultsEv"));
  IpcReadOptions options = original();
  static LimitedPool* pool = new LimitedPool(options.memory_pool);  // buffers outlive everything
  options.memory_pool = pool;
  return options;
}

}  // namespace arrow::ipc
