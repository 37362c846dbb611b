#include "train/coordination.h"

namespace trireme::train {

int CommunicatorCoordination::rank() const { return static_cast<int>(communicator_.rank()); }
int CommunicatorCoordination::size() const { return static_cast<int>(communicator_.size()); }
void CommunicatorCoordination::barrier() { communicator_.barrier(); }
std::vector<std::string> CommunicatorCoordination::all_gather_strings(const std::string& mine) {
  return communicator_.all_gather_strings(mine);
}

}  // namespace trireme::train
