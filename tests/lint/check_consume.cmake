# SPDX-License-Identifier: Apache-2.0
# A user's program builds and runs with Ductile in each way it is offered: as a subdirectory,
# through find_package, and through pkg-config, static and shared.
cmake_minimum_required(VERSION 3.23)

separate_arguments(EMULATOR UNIX_COMMAND "${EMULATOR}")
file(REMOVE_RECURSE ${SCRATCH})
set(program ${SCRATCH}/program)
file(MAKE_DIRECTORY ${program})
file(COPY ${ROOT}/tests/lint/consumer.c DESTINATION ${program})
file(WRITE ${program}/CMakeLists.txt [[
cmake_minimum_required(VERSION 3.23)
project(consumer LANGUAGES C)
if(DUCTILE_SOURCE)
  add_subdirectory(${DUCTILE_SOURCE} ductile)
else()
  find_package(ductile 0.1 REQUIRED)
endif()
add_executable(consumer consumer.c)
target_link_libraries(consumer PRIVATE ductile::ductile)
]])

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\n${text}")
  endif()
endfunction()

# No debugger sees what is built here.
function(build_and_run name)
  run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${program} -B ${SCRATCH}/${name} -D CMAKE_C_COMPILER=${CC}
    -D CMAKE_BUILD_TYPE=Debug -D CMAKE_C_FLAGS_DEBUG= ${ARGN})
  run(${CMAKE_COMMAND} --build ${SCRATCH}/${name} -j 2)
  run(${EMULATOR} ${SCRATCH}/${name}/consumer)
endfunction()

# As a subdirectory, shared; that build installs the shared package, and BUILD the static one, below
# a root of its own, as packagers do.
build_and_run(subdirectory -D DUCTILE_SOURCE=${ROOT} -D BUILD_SHARED_LIBS=ON -D DUCTILE_INSTALL=ON
  -D CMAKE_INSTALL_PREFIX=${PREFIX} -D CMAKE_INSTALL_LIBDIR=${LIBDIR})
set(build_shared ${SCRATCH}/subdirectory)
set(build_static ${BUILD})

find_program(PKG_CONFIG pkg-config)
function(build_by_pkg_config name libdir)
  set(ENV{PKG_CONFIG_PATH} ${libdir}/pkgconfig)
  execute_process(COMMAND ${PKG_CONFIG} --cflags --libs ductile OUTPUT_VARIABLE flags
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  run(${CC} ${program}/consumer.c -o ${SCRATCH}/by-pkg-config-${name} ${flags}
    -Wl,-rpath,${libdir})
  run(${EMULATOR} ${SCRATCH}/by-pkg-config-${name})
endfunction()

foreach(kind static shared)
  set(root ${SCRATCH}/root-${kind})
  set(prefix ${root}${PREFIX})
  run(${CMAKE_COMMAND} -E env DESTDIR=${root} ${CMAKE_COMMAND} --install ${build_${kind}})
  build_and_run(package-${kind} -D CMAKE_PREFIX_PATH=${prefix})

  # Nobody gets at what is below the public headers.
  file(GLOB_RECURSE headers RELATIVE ${prefix}/include ${prefix}/include/*)
  file(GLOB public_headers RELATIVE ${ROOT}/pool/include ${ROOT}/pool/include/*.h)
  if(NOT headers STREQUAL "${public_headers}")
    message(FATAL_ERROR "installed headers: ${headers}")
  endif()

  if(PKG_CONFIG)
    set(ENV{PKG_CONFIG_SYSROOT_DIR} ${root})
    build_by_pkg_config(${kind} ${prefix}/${LIBDIR})
  endif()
endforeach()

# At a prefix that only the installation names.
if(PKG_CONFIG)
  unset(ENV{PKG_CONFIG_SYSROOT_DIR})
  run(${CMAKE_COMMAND} --install ${build_shared} --prefix ${SCRATCH}/elsewhere)
  build_by_pkg_config(elsewhere ${SCRATCH}/elsewhere/${LIBDIR})
endif()
