# SPDX-License-Identifier: Apache-2.0
# Every file that a page links to or names by its path, or that a source names as docs/..., is there.
# With INSTALLED, ROOT is where pages were installed, and only what they link to is looked for. A tree without extras
# has none of what pages say of them.
cmake_minimum_required(VERSION 3.23)

function(look_for page path what)
  set(extras ${ROOT}/extras)
  cmake_path(NORMAL_PATH path)
  cmake_path(IS_PREFIX extras ${path} is_of_extras)
  if(NOT EXISTS ${path} AND (NOT is_of_extras OR EXISTS ${extras}))
    message(SEND_ERROR "${page} ${what}, which does not exist")
  endif()
endfunction()

file(GLOB_RECURSE pages ${ROOT}/docs/*.md ${ROOT}/bench/*.md ${ROOT}/vmm/*.md ${ROOT}/extras/*.md)
if(NOT pages)
  message(FATAL_ERROR "there are no pages in ${ROOT}")
endif()
file(GLOB first_pages ${ROOT}/*.md)
foreach(page ${first_pages} ${pages})
  cmake_path(GET page PARENT_PATH folder)
  file(STRINGS ${page} lines REGEX "\\]\\([^)]+\\)| src=")
  # Square brackets keep CMake from seeing where one item of a list ends.
  string(REGEX REPLACE "[][]" "@" lines "${lines}")
  string(REGEX MATCHALL "(@\\(| src=\")[^)#\" ]+" links "${lines}")
  foreach(link ${links})
    string(REGEX REPLACE "^(@\\(| src=\")" "" link "${link}")
    if(NOT link MATCHES "^[a-z]+:")
      look_for(${page} ${folder}/${link} "links to ${link}")
    endif()
  endforeach()
endforeach()
if(INSTALLED)
  return()
endif()

# `tests/ROOM/test_X.c` and its like stand for many.
foreach(page ${first_pages} ${pages})
  file(READ ${page} text)
  set(tops "vmm|segments|pool|bench|tests|python|extras")
  string(REGEX MATCHALL "[`(](${tops})/[a-z0-9_/]+\\.(c|h|py|txt|cmake)[`)]" paths "${text}")
  foreach(path ${paths})
    string(REGEX REPLACE "[`()]" "" path "${path}")
    look_for(${page} ${ROOT}/${path} "names ${path}")
  endforeach()
endforeach()

file(GLOB_RECURSE sources ${ROOT}/vmm/*.[ch] ${ROOT}/segments/*.[ch] ${ROOT}/pool/*.[ch]
  ${ROOT}/bench/*.[ch] ${ROOT}/tests/*.[ch] ${ROOT}/extras/*.[ch])
foreach(source ${sources})
  file(STRINGS ${source} lines REGEX "docs/[a-z0-9_/-]+\\.md")
  foreach(line ${lines})
    string(REGEX MATCH "docs/[a-z0-9_/-]+\\.md" page "${line}")
    if(NOT EXISTS ${ROOT}/${page})
      message(SEND_ERROR "${source} names ${page}, which does not exist")
    endif()
  endforeach()
endforeach()
