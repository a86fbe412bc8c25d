# SPDX-License-Identifier: Apache-2.0
# A user's program builds and runs with Ductile in each way it is offered: as a subdirectory,
# through find_package, and through pkg-config, static and shared. One program links the virtual GPU,
# another has libductile alone, which opens the virtual GPU's library where there is one. Installed
# pages link to nothing that is not there, those for contributors are not among them, and `uninstall`
# leaves nothing that was not there before.
cmake_minimum_required(VERSION 3.23)

separate_arguments(EMULATOR UNIX_COMMAND "${EMULATOR}")
file(REMOVE_RECURSE ${SCRATCH})
set(program ${SCRATCH}/program)
file(MAKE_DIRECTORY ${program})
file(COPY ${ROOT}/tests/lint/consumer.c ${ROOT}/tests/lint/consumer_alone.c DESTINATION ${program})
file(WRITE ${program}/CMakeLists.txt [[
cmake_minimum_required(VERSION 3.23)
project(consumer LANGUAGES C)
if(DUCTILE_SOURCE)
  add_subdirectory(${DUCTILE_SOURCE} ductile)
else()
  find_package(ductile 0.2 REQUIRED)
endif()
add_executable(consumer consumer.c)
target_link_libraries(consumer PRIVATE ductile::virtual)
add_executable(alone consumer_alone.c)
target_link_libraries(alone PRIVATE ductile::ductile)
add_executable(told consumer_alone.c)
target_link_libraries(told PRIVATE ductile::ductile ductile::virtual)
]])

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\n${text}")
  endif()
endfunction()

# An environment in which all programs get a virtual GPU, and no library is found but where one is sought.
set(virtual ${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH DUCTILE_CONF=driver:virtual)

# refused(PATTERN COMMAND...): the program says this, and that no library was found.
function(refused pattern)
  execute_process(COMMAND ${virtual} ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(status EQUAL 0 OR NOT text MATCHES "${pattern}.*\nDUCTILE_ERR_NO_LIBRARY\n")
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command} should say \"${pattern}\" (status ${status}):\n${text}")
  endif()
endfunction()
set(missing "install libductile_virtual.so.[0-9.]+ beside libductile, or link")

# No debugger sees what is built here.
function(build_and_run name)
  run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${program} -B ${SCRATCH}/${name} -D CMAKE_C_COMPILER=${CC}
    -D CMAKE_BUILD_TYPE=Debug -D CMAKE_C_FLAGS_DEBUG= ${ARGN})
  run(${CMAKE_COMMAND} --build ${SCRATCH}/${name} -j 2)
  run(${EMULATOR} ${SCRATCH}/${name}/consumer)
  run(${virtual} ${EMULATOR} ${SCRATCH}/${name}/told)
endfunction()

# As a subdirectory, shared; that build installs the shared package, and BUILD the static one, below
# a root of its own, as packagers do.
build_and_run(subdirectory -D DUCTILE_SOURCE=${ROOT} -D BUILD_SHARED_LIBS=ON -D DUCTILE_INSTALL=ON
  -D DUCTILE_BUILD_EXTRAS=ON
  -D CMAKE_INSTALL_PREFIX=${PREFIX} -D CMAKE_INSTALL_LIBDIR=${LIBDIR})
set(build_shared ${SCRATCH}/subdirectory)
set(build_static ${BUILD})

find_program(PKG_CONFIG pkg-config)
function(build_by_pkg_config name libdir source package)
  set(ENV{PKG_CONFIG_PATH} "${libdir}/pkgconfig")
  execute_process(COMMAND ${PKG_CONFIG} --cflags --libs ${package} OUTPUT_VARIABLE flags
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  run(${CC} ${program}/${source}.c -o ${SCRATCH}/by-pkg-config-${name} ${flags}
    "-Wl,-rpath,${libdir}")
  run(${virtual} ${EMULATOR} ${SCRATCH}/by-pkg-config-${name})
endfunction()

foreach(kind static shared)
  set(root ${SCRATCH}/root-${kind})
  set(prefix ${root}${PREFIX})
  file(MAKE_DIRECTORY ${prefix}/share) # empty, and not Ductile's
  run(${CMAKE_COMMAND} -E env DESTDIR=${root} ${CMAKE_COMMAND} --install ${build_${kind}})
  build_and_run(package-${kind} -D CMAKE_PREFIX_PATH=${prefix})

  # No consumer gets at what is below the public headers.
  file(GLOB_RECURSE headers RELATIVE ${prefix}/include ${prefix}/include/*)
  file(GLOB public_headers RELATIVE ${ROOT}/pool/include ${ROOT}/pool/include/*.h ${ROOT}/pool/include/*.hpp)
  if(NOT headers STREQUAL "${public_headers}")
    message(FATAL_ERROR "installed headers: ${headers}")
  endif()
  run(${CMAKE_COMMAND} -D INSTALLED=ON -D ROOT=${prefix}/${DOCDIR} -P ${ROOT}/tests/lint/check_links.cmake)
  if(EXISTS ${prefix}/${DOCDIR}/docs/dev)
    message(FATAL_ERROR "pages for contributors are installed")
  endif()

  if(PKG_CONFIG)
    set(ENV{PKG_CONFIG_SYSROOT_DIR} ${root})
    build_by_pkg_config(${kind} ${prefix}/${LIBDIR} consumer ductile_virtual)
    build_by_pkg_config(${kind}-told ${prefix}/${LIBDIR} consumer_alone ductile_virtual)
  endif()
endforeach()

# A program with the archive finds the library where the system does, one with libductile.so beside that.
file(GLOB opened RELATIVE ${SCRATCH}/root-static${PREFIX}/${LIBDIR}
  ${SCRATCH}/root-static${PREFIX}/${LIBDIR}/libductile_virtual*.so*)
if(NOT opened MATCHES "^libductile_virtual\\.so\\.[0-9]+\\.[0-9]+;libductile_virtual\\.so\\.[0-9.]+$")
  message(FATAL_ERROR "beside the archives lie ${opened}")
endif()
list(GET opened 0 soname)
set(alone_static ${EMULATOR} ${SCRATCH}/package-static/alone)
set(alone_shared ${EMULATOR} ${SCRATCH}/package-shared/alone)
run(${virtual} LD_LIBRARY_PATH=${SCRATCH}/root-static${PREFIX}/${LIBDIR} ${alone_static})
refused("${missing}" ${alone_static})
run(${virtual} ${alone_shared})

# What extras install is a library of its own beside the archives, and finds libductile.so beside itself.
if(NOT EMULATOR)
  foreach(kind static shared)
    set(place ${SCRATCH}/root-${kind}${PREFIX}/${LIBDIR})
    file(GLOB libraries ${place}/libductile_*.so)
    list(REMOVE_ITEM libraries ${place}/libductile_virtual.so)
    foreach(library ${libraries})
      execute_process(COMMAND ${virtual} LD_LIBRARY_PATH=${SCRATCH}/root-static${PREFIX}/${LIBDIR} LD_PRELOAD=${library}
        ${alone_${kind}} RESULT_VARIABLE status ERROR_VARIABLE text)
      if(NOT status EQUAL 0 OR text MATCHES "preload") # the loader goes on without what it cannot load
        message(FATAL_ERROR "${library}: status ${status}: ${text}")
      endif()
    endforeach()
  endforeach()
endif()

# Or beside the program, by whatever name that was started.
file(COPY_FILE ${SCRATCH}/root-static${PREFIX}/${LIBDIR}/${soname} ${SCRATCH}/package-static/${soname})
run(${virtual} ${alone_static})
run(${virtual} ${CMAKE_COMMAND} -E chdir ${SCRATCH}/package-static ${EMULATOR} ./alone)

# Also in folders of those whose umask is 002. But not from where another user may have put it.
set(for_group OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_WRITE GROUP_EXECUTE)
file(CHMOD ${SCRATCH}/package-static PERMISSIONS ${for_group})
run(${virtual} ${alone_static})
file(CHMOD ${SCRATCH}/package-static PERMISSIONS ${for_group} WORLD_READ WORLD_WRITE WORLD_EXECUTE)
refused("${soname} is not opened, because it or its folder belongs to another user" ${alone_static})
file(CHMOD ${SCRATCH}/package-static PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)

# What lies there may be no library, or another version's.
set(place ${SCRATCH}/root-shared${PREFIX}/${LIBDIR})
file(GLOB there ${place}/libductile_virtual.so*)
file(REMOVE ${there})
refused("${missing}" ${alone_shared})
file(WRITE ${place}/${soname} "no library")
refused("${missing}.*${soname}" ${alone_shared})
file(WRITE ${SCRATCH}/other.c "
  static const struct { const char *version; } backend = {\"0.0.9\"};
  const void *ductile_virtual_backend(void) { return &backend; }\n")
run(${CC} -shared -fPIC ${SCRATCH}/other.c -o ${place}/${soname})
refused("libductile_virtual is 0.0.9: install both of one version" ${alone_shared})

# At a prefix that only the installation names, with a space in it.
if(PKG_CONFIG)
  unset(ENV{PKG_CONFIG_SYSROOT_DIR})
  set(elsewhere "${SCRATCH}/else where")
  run(${CMAKE_COMMAND} --install ${build_shared} --prefix ${elsewhere})
  build_by_pkg_config(elsewhere "${elsewhere}/${LIBDIR}" consumer ductile_virtual)
  build_by_pkg_config(elsewhere-alone "${elsewhere}/${LIBDIR}" consumer_alone ductile)
endif()

# What was installed goes, with the folders that were made for it; what others have there stays.
set(prefix ${SCRATCH}/root-static${PREFIX})
file(WRITE ${prefix}/${LIBDIR}/pkgconfig/other.pc "")
run(${CMAKE_COMMAND} -E env DESTDIR=${SCRATCH}/root-static ${CMAKE_COMMAND} --build ${BUILD} --target uninstall)
file(GLOB_RECURSE left LIST_DIRECTORIES true RELATIVE ${prefix} ${prefix}/*)
set(expected ${LIBDIR} ${LIBDIR}/pkgconfig ${LIBDIR}/pkgconfig/other.pc share)
list(SORT left)
list(SORT expected)
if(NOT left STREQUAL "${expected}")
  message(FATAL_ERROR "uninstall leaves ${left}")
endif()
