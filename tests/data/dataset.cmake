trireme_test(test_data
  SOURCES data_fixture.cpp test_prepare.cpp test_prepare_text.cpp test_dataset.cpp test_loader.cpp test_evaluation_windows.cpp
  DEPENDS trireme_data
  LABELS unit)
# Parsing gmock and JSON is most of the compile time of these files, and none of their run time counts.
set_target_properties(test_data PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
target_compile_options(test_data PRIVATE -O0)
