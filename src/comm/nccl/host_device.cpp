#include <vector>

#include "base/error.h"
#include "comm/nccl/device.h"
#include "comm/reduce.h"

namespace trireme::comm {
namespace {

class HostStream final : public DeviceStream {
 public:
  explicit HostStream(const NcclTable& table) : table_(table) {
    if (table_.make_stream(&handle_) != nccl_done) throw_internal("the library makes no stream");
  }
  ~HostStream() override { table_.free_stream(handle_); }
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  void* handle() const override { return handle_; }

  std::shared_ptr<std::byte> allocate(int64_t bytes) override {
    const std::shared_ptr<std::byte[]> memory(new std::byte[static_cast<size_t>(bytes)]);
    return {memory, memory.get()};
  }

  void reduce(void* output, std::span<const void* const> inputs, int64_t count, DType dtype, Reduction how) override {
    run([output, terms = std::vector<const void*>(inputs.begin(), inputs.end()), count, dtype, how] {
      comm::reduce({&output, 1}, terms, count, dtype, how);
    });
  }

 private:
  template <typename Task>
  void run(Task task) {
    auto* held = new Task(std::move(task));
    const auto call = [](void* argument) {
      const std::unique_ptr<Task> taken(static_cast<Task*>(argument));
      (*taken)();
    };
    if (table_.run_on(handle_, call, held) != nccl_done) throw_internal("the library runs no task");
  }

  const NcclTable& table_;
  void* handle_ = nullptr;
};

}  // namespace

std::unique_ptr<DeviceStream> HostDevice::make_stream() { return std::make_unique<HostStream>(table_); }

}  // namespace trireme::comm
