# SPDX-License-Identifier: MIT
# Writes OUT, a header with the commit of SOURCE ("+": with changes on top), when it has changed.
# cmake -DOUT=commit.h -DSOURCE=. [-DCOMMIT=given] -P commit.cmake
cmake_minimum_required(VERSION 3.22)
if(NOT COMMIT AND EXISTS ${SOURCE}/.git)
    execute_process(COMMAND git rev-parse --short=12 HEAD WORKING_DIRECTORY ${SOURCE}
                    OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    # without git's locks, because a build must not disturb work in the tree
    execute_process(COMMAND git --no-optional-locks status --porcelain --untracked-files=no
                    WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE CHANGES ERROR_QUIET)
    if(COMMIT AND CHANGES)
        string(APPEND COMMIT "+")
    endif()
endif()
if(NOT COMMIT)
    set(COMMIT unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define QV_COMMIT \"@COMMIT@\"\n" @ONLY)
