// Entry of `trireme-supervisor`, which `trireme train` becomes once its run is checked.
#include "resilience/supervisor_program.h"

int main(int argc, char** argv) { return trireme::resilience::supervisor_main(argc, argv); }
