// checkpoint::Coordination over a communicator.
#pragma once

#include "checkpoint/coordination.h"
#include "comm/communicator.h"

namespace trireme::train {

class CommunicatorCoordination final : public checkpoint::Coordination {
 public:
  /// `communicator` must outlive this.
  explicit CommunicatorCoordination(comm::Communicator& communicator) : communicator_(communicator) {}
  int rank() const override;
  int size() const override;
  void barrier() override;
  std::vector<std::string> all_gather_strings(const std::string& mine) override;

 private:
  comm::Communicator& communicator_;
};

}  // namespace trireme::train
