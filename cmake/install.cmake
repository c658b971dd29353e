# SPDX-License-Identifier: MIT
# Defines what `cmake --install` installs and where, and makes the packages for find_package,
# pkg-config and Debian.
# The components are runtime (the command, its benches, shared libraries), cuda (the backend that
# they open) and dev.
if(QV_SANITIZE OR (QV_METAL AND NOT APPLE))
    return() # builds for tests link libraries that are not installed
endif()
include(CMakePackageConfigHelpers)
set(PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/qwenvit)
set(PRIVATE_DIR ${CMAKE_INSTALL_LIBDIR}/qwenvit) # libraries for qwenvit's own use
set(LIBEXEC_DIR ${CMAKE_INSTALL_LIBEXECDIR}/qwenvit) # programs that only qwenvit starts

# A oneDNN that is not the system's is installed too, so that the installed tree is self-contained.
if(QV_CPU AND DNNL_LIBRARY MATCHES "\\.so$")
    get_filename_component(dnnl_dir ${DNNL_LIBRARY} DIRECTORY)
    if(NOT dnnl_dir IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
        file(REAL_PATH ${DNNL_LIBRARY} dnnl_file)
        set(PRIVATE_DNNL libdnnl.so.${DNNL_MAJOR}) # its soname
        install(FILES ${dnnl_file} DESTINATION ${PRIVATE_DIR} RENAME ${PRIVATE_DNNL}
                COMPONENT runtime)
        install(DIRECTORY ${dnnl_dir}/../share/doc/onednn DESTINATION ${CMAKE_INSTALL_DOCDIR}
                COMPONENT runtime OPTIONAL) # its license
    endif()
endif()

# ---- libraries and headers -----------------------------------------------------------------------
# Each library finds the others next to it. So a program that links one need not name its dependencies,
# and the program's own library path does not matter.
set(origin $ORIGIN)
if(APPLE)
    set(origin @loader_path)
endif()
set(library_rpath ${origin})
if(PRIVATE_DNNL)
    list(APPEND library_rpath ${origin}/qwenvit)
endif()
add_custom_target(installed) # builds everything that is installed, without tests
# install_library(NAME NAME_IN_PACKAGE OBJECTS...) installs the static library, the shared one and its
# headers; the static one links what its objects need
function(install_library name exported)
    foreach(objects ${ARGN})
        get_target_property(needs ${objects} LINK_LIBRARIES)
        foreach(need ${needs})
            target_link_libraries(${name} INTERFACE $<INSTALL_INTERFACE:$<LINK_ONLY:${need}>>)
        endforeach()
    endforeach()
    set_target_properties(${name} PROPERTIES EXPORT_NAME ${exported}_static)
    set_target_properties(${name}_shared PROPERTIES EXPORT_NAME ${exported})
    set_target_properties(${name}_shared PROPERTIES INSTALL_RPATH "${library_rpath}")
    install(TARGETS ${name}_shared EXPORT qwenvit_shared
            LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT dev
            PUBLIC_HEADER DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev
            INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
    install(TARGETS ${name} EXPORT qwenvit_static
            ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev
            INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
    add_dependencies(installed ${name} ${name}_shared)
endfunction()
install_library(qwenvit qwenvit ${objects})
install_library(qwenvit_cache cache qwenvit_cache_objects)

# ---- programs ------------------------------------------------------------------------------------
# install_program(TARGET FOLDER)
function(install_program target folder)
    if(PRIVATE_DNNL)
        file(RELATIVE_PATH up /${folder} /${PRIVATE_DIR})
        set_target_properties(${target} PROPERTIES INSTALL_RPATH "${origin}/${up}")
    endif()
    install(TARGETS ${target} RUNTIME DESTINATION ${folder} COMPONENT runtime)
    add_dependencies(installed ${target})
endfunction()
if(TARGET qwenvit_command)
    install_program(qwenvit_command ${CMAKE_INSTALL_BINDIR})
    install_program(qwenvit_bench ${CMAKE_INSTALL_BINDIR})
endif()
# bash's completion, which the programs print for their options.
if(TARGET qwenvit_command AND NOT CMAKE_CROSSCOMPILING)
    foreach(program qwenvit_command qwenvit_bench)
        set(name $<TARGET_FILE_NAME:${program}>)
        add_custom_command(TARGET ${program} POST_BUILD VERBATIM
            COMMAND ${program} help --bash > ${name}.bash)
        install(FILES ${CMAKE_BINARY_DIR}/${name}.bash COMPONENT runtime RENAME ${name}
                DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
    endforeach()
endif()
install(FILES cmake/valgrind.supp DESTINATION ${CMAKE_INSTALL_DATADIR}/qwenvit COMPONENT dev)
install(FILES tests/consumer/CMakeLists.txt tests/consumer/main.c tests/consumer/alone.c
        DESTINATION ${CMAKE_INSTALL_DOCDIR}/example COMPONENT dev)
if(QV_CLIPS)
    install_program(qwenvit_decoder ${LIBEXEC_DIR})
endif()
if(TARGET qwenvit_cuda)
    install(TARGETS qwenvit_cuda LIBRARY DESTINATION ${PRIVATE_DIR} COMPONENT cuda)
    add_dependencies(installed qwenvit_cuda)
endif()
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright COMPONENT runtime)

# ---- find_package(qwenvit) -----------------------------------------------------------------------
foreach(kind shared static)
    install(EXPORT qwenvit_${kind} FILE qwenvit-${kind}.cmake NAMESPACE qwenvit::
            DESTINATION ${PACKAGE_DIR} COMPONENT dev)
endforeach()
configure_package_config_file(cmake/qwenvit-config.cmake.in ${CMAKE_BINARY_DIR}/qwenvit-config.cmake
                              INSTALL_DESTINATION ${PACKAGE_DIR} PATH_VARS PRIVATE_DIR LIBEXEC_DIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/qwenvit-config-version.cmake
                                 COMPATIBILITY SameMinorVersion) # until 1.0
install(FILES ${CMAKE_BINARY_DIR}/qwenvit-config.cmake
              ${CMAKE_BINARY_DIR}/qwenvit-config-version.cmake
        DESTINATION ${PACKAGE_DIR} COMPONENT dev)

# ---- pkg-config ----------------------------------------------------------------------------------
# Private libraries are in Libs.private instead of Requires.private. For the latter, pkg-config
# requires the .pc files even from users of the shared library, and with --static it adds the static
# libraries of everything in FFmpeg.
set(core_private ${JANSSON_LDFLAGS} -lm -ldl -pthread)
if(PRIVATE_DNNL)
    list(APPEND core_private "\${libdir}/qwenvit/${PRIVATE_DNNL}" "-Wl,-rpath,\${libdir}/qwenvit")
elseif(QV_CPU)
    list(APPEND core_private -ldnnl)
endif()
if(QV_CPU)
    list(APPEND core_private ${OpenMP_C_FLAGS})
    if(QV_BLAS)
        list(APPEND core_private ${OPENBLAS_LDFLAGS})
    endif()
endif()
if(QV_CUDA AND QV_CUDA_STATIC)
    list(APPEND core_private -L${CUDAToolkit_LIBRARY_DIR} -lcublasLt -lcudart_static
         ${CUDNN_LIBRARY} -lstdc++ -lrt)
endif()
if(APPLE AND QV_METAL)
    list(APPEND core_private -framework Metal -framework Foundation)
endif()
# install_pc(NAME SUMMARY FLAGS...)
function(install_pc name summary)
    set(private ${ARGN})
    foreach(folder ${CMAKE_C_IMPLICIT_LINK_DIRECTORIES})
        list(REMOVE_ITEM private -L${folder})
    endforeach()
    list(JOIN private " " private)
    file(RELATIVE_PATH prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
    string(REGEX REPLACE "/$" "" prefix ${prefix})
    configure_file(cmake/library.pc.in ${CMAKE_BINARY_DIR}/${name}.pc @ONLY)
    install(FILES ${CMAKE_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
            COMPONENT dev)
endfunction()
install_pc(qwenvit "${PROJECT_DESCRIPTION}" ${core_private})
install_pc(qwenvit_cache "Folders of vision tokens" ${JANSSON_LDFLAGS} -pthread -lm)

# ---- Debian packages: cpack -G DEB ---------------------------------------------------------------
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_CONTACT "the authors of qwenvit")
set(CPACK_COMPONENTS_ALL runtime dev)
if(TARGET qwenvit_cuda)
    list(APPEND CPACK_COMPONENTS_ALL cuda)
endif()
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON) # packages depend on each other in exactly one version
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME qwenvit)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION video)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION
    "The command, its benches, and the shared libraries libqwenvit and libqwenvit_cache.")
set(CPACK_DEBIAN_CUDA_PACKAGE_NAME qwenvit-cuda)
set(CPACK_DEBIAN_CUDA_PACKAGE_SECTION video)
set(CPACK_DEBIAN_CUDA_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_CUDA_DEPENDS runtime)
set(CPACK_COMPONENT_CUDA_DESCRIPTION
    "The CUDA backend of qwenvit\nThe command and libqwenvit open it on NVIDIA GPUs (Ampere and newer).")
# these are NVIDIA's packages, and users may have the libraries from elsewhere
set(cuda_major ${CUDAToolkit_VERSION_MAJOR})
set(CPACK_DEBIAN_CUDA_PACKAGE_RECOMMENDS
    "libcublas-${cuda_major}-${CUDAToolkit_VERSION_MINOR}, libcudnn9-cuda-${cuda_major} (>= 9.15)")
set(CPACK_DEBIAN_DEV_PACKAGE_NAME qwenvit-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_DEV_DEPENDS runtime)
set(CPACK_COMPONENT_DEV_DESCRIPTION
    "Headers and static libraries of qwenvit\nAnd what find_package and pkg-config read.")
# libraries that only the static libraries need
set(CPACK_DEBIAN_DEV_PACKAGE_RECOMMENDS libjansson-dev)
include(CPack)
