# SPDX-License-Identifier: MIT
# Debian's cross compiler (gcc-aarch64-linux-gnu) with the libraries that tests/arm64.sh unpacks,
# which are Debian 13's. qemu-user-static runs what it makes.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(root ${CMAKE_CURRENT_LIST_DIR}/../build/deps/root-arm64)
get_filename_component(CMAKE_SYSROOT ${root} ABSOLUTE)
# The compiler would find its own, older C library first. FFmpeg lacks the libraries that it needs here.
set(libraries ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu)
set(headers ${CMAKE_SYSROOT}/usr/include)
set(CMAKE_C_FLAGS_INIT "-isystem ${headers}/aarch64-linux-gnu -isystem ${headers}")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-L${libraries} -Wl,--allow-shlib-undefined")
set(CMAKE_SHARED_LINKER_FLAGS_INIT ${CMAKE_EXE_LINKER_FLAGS_INIT})
set(CMAKE_FIND_ROOT_PATH ${CMAKE_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${CMAKE_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${libraries}/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig:${CMAKE_SYSROOT}/usr/lib/pkgconfig)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L ${CMAKE_SYSROOT})
