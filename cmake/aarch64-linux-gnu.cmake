# SPDX-License-Identifier: MIT
# Debian's cross compiler (gcc-aarch64-linux-gnu) with the headers of this machine's own libraries,
# which are the same for every architecture. This shows that the sources compile; nothing is linked.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)

# a folder with links to these headers, as their own folder has this machine's C library too
set(headers ${CMAKE_BINARY_DIR}/headers)
file(MAKE_DIRECTORY ${headers})
foreach(name jansson.h jansson_config.h xxhash.h oneapi libavcodec libavformat libavutil libswscale
        seccomp.h seccomp-syscalls.h jpeglib.h jconfig.h jmorecfg.h jerror.h)
    file(GLOB found /usr/include/${name} /usr/include/*-linux-gnu/${name})
    if(found)
        file(CREATE_LINK ${found} ${headers}/${name} SYMBOLIC)
    endif()
endforeach()
set(CMAKE_INCLUDE_PATH ${headers})
set(PKG_CONFIG_ARGN --define-variable=includedir=${headers})
