# SPDX-License-Identifier: MIT
# Builds Objective-C with clang over GNU's runtime, whose headers belong to gcc.
find_program(QV_CLANG NAMES clang clang-14 clang-15 clang-16 clang-17 clang-18 clang-19)
find_program(QV_CLANGXX NAMES clang++ clang++-14 clang++-15 clang++-16 clang++-17 clang++-18
                              clang++-19)
execute_process(COMMAND gcc -print-file-name=include OUTPUT_VARIABLE GCC_INCLUDE
                OUTPUT_STRIP_TRAILING_WHITESPACE)
execute_process(COMMAND gcc -print-file-name=libobjc.so OUTPUT_VARIABLE QV_LIBOBJC
                OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT QV_CLANG OR NOT QV_CLANGXX OR NOT EXISTS ${GCC_INCLUDE}/objc/objc.h)
    message(FATAL_ERROR "QV_METAL: off macOS the kernels run in an emulator, which needs clang and "
                        "GNU's Objective-C runtime (tools/deps.sh installs both)")
endif()
set(CMAKE_OBJC_COMPILER ${QV_CLANG})
set(CMAKE_OBJC_FLAGS "-std=gnu11 -fobjc-runtime=gcc -fconstant-string-class=NSConstantString \
-fblocks -idirafter ${GCC_INCLUDE}")
