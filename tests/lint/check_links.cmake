# SPDX-License-Identifier: Apache-2.0
# Every file that a page links to or names by its path, or that a source names as docs/..., is there.
cmake_minimum_required(VERSION 3.23)

file(GLOB_RECURSE pages ${ROOT}/docs/*.md ${ROOT}/bench/*.md ${ROOT}/vmm/*.md)
foreach(page ${ROOT}/README.md ${pages})
  cmake_path(GET page PARENT_PATH folder)
  file(STRINGS ${page} lines REGEX "\\]\\([^)]+\\)")
  # Square brackets keep CMake from seeing where one item of a list ends.
  string(REGEX REPLACE "[][]" "@" lines "${lines}")
  string(REGEX MATCHALL "@\\([^)# ]+" links "${lines}")
  foreach(link ${links})
    string(SUBSTRING "${link}" 2 -1 link)
    if(NOT link MATCHES "^[a-z]+:" AND NOT EXISTS ${folder}/${link})
      message(SEND_ERROR "${page} links to ${link}, which does not exist")
    endif()
  endforeach()
endforeach()

# `tests/ROOM/test_X.c` and its like stand for many.
foreach(page ${ROOT}/README.md ${pages})
  file(READ ${page} text)
  set(tops "vmm|segments|pool|preload|bench|tests|python")
  string(REGEX MATCHALL "[`(](${tops})/[a-z0-9_/]+\\.(c|h|py|txt|cmake)[`)]" paths "${text}")
  foreach(path ${paths})
    string(REGEX REPLACE "[`()]" "" path "${path}")
    if(NOT EXISTS ${ROOT}/${path})
      message(SEND_ERROR "${page} names ${path}, which does not exist")
    endif()
  endforeach()
endforeach()

file(GLOB_RECURSE sources ${ROOT}/vmm/*.[ch] ${ROOT}/segments/*.[ch] ${ROOT}/pool/*.[ch]
  ${ROOT}/bench/*.[ch] ${ROOT}/tests/*.[ch])
foreach(source ${sources})
  file(STRINGS ${source} lines REGEX "docs/[a-z0-9_/-]+\\.md")
  foreach(line ${lines})
    string(REGEX MATCH "docs/[a-z0-9_/-]+\\.md" page "${line}")
    if(NOT EXISTS ${ROOT}/${page})
      message(SEND_ERROR "${source} names ${page}, which does not exist")
    endif()
  endforeach()
endforeach()
