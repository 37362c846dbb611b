// Entry of the program `trireme`. A program with models of its own has a main like this one, which registers them first
// (models/register.h).
#include "cli/main.h"

int main(int argc, char** argv) { return trireme::cli::main(argc, argv); }
