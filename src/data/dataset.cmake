# Shards, preparation and loading; included by CMakeLists.txt of this folder.
trireme_library(trireme_data
  SOURCES manifest.cpp shard.cpp shard_writer.cpp dataset.cpp loader.cpp evaluation_windows.cpp
          prepare.cpp prepare_inputs.cpp prepare_journal.cpp prepare_pipeline.cpp inspect.cpp
  DEPENDS trireme_base trireme_tokenizer nlohmann_json::nlohmann_json)
