// A program with one fault on purpose. The sanitizer builds run it to prove that they see such a fault: a build whose
// flags got lost would otherwise be green for ever.
#include <sys/mman.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstring>
#include <thread>

namespace {

/// Two ranks as threads over one shared mapping, as the tests of the communication core run them, and no barrier
/// between.
int race() {
  const int file = memfd_create("planted_race", 0);
  if (file < 0 || ftruncate(file, 4096) != 0) return 2;
  void* mapping = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapping == MAP_FAILED) return 2;
  int* counter = static_cast<int*>(mapping);
  const auto rank = [counter] {
    for (int i = 0; i < 1000; ++i) ++*counter;
  };
  std::thread first(rank);
  std::thread second(rank);
  first.join();
  second.join();
  return *counter == 2000 ? 0 : 1;
}

// `volatile` keeps the compiler from seeing the fault, and from removing it.
int use_after_free() {
  int* volatile pointer = new int(1);
  delete pointer;
  return *pointer;
}

int overflow() {
  volatile int largest = INT_MAX;
  return largest + 1;
}

}  // namespace

int main(int argc, char** argv) {
  const char* fault = argc == 2 ? argv[1] : "";
  if (std::strcmp(fault, "race") == 0) return race();
  if (std::strcmp(fault, "use-after-free") == 0) return use_after_free();
  if (std::strcmp(fault, "overflow") == 0) return overflow();
  std::fprintf(stderr, "usage: planted_fault race|use-after-free|overflow\n");
  return 2;
}
