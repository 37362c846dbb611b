// The table of options as text: a commented file, the documentation page, a list for --help.
#pragma once

#include <string>

namespace trireme::config {

/// Every option with its help and its default, as a config file that loads. What follows from other options is
/// commented out; what has to be given has an example.
std::string render_all();

/// The page docs/configuration.md.
std::string render_docs();

/// A line an option (key, default, first sentence of its help), for --help.
std::string render_summary();

}  // namespace trireme::config
