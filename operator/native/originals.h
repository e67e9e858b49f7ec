// Arrow's own definitions behind those of this library.

#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "arrow/util/config.h"

// Returns the function of a symbol in one of Arrow's libraries, which are there already. Ends the
// process, and says why, when there is none: the library was built for another Arrow.
inline void* Original(const char* library, const char* symbol) {
  void* opened = dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
  void* found = opened == nullptr ? nullptr : dlsym(opened, symbol);
  if (found == nullptr) {
    std::fprintf(stderr, "librezone_limits.so is of Arrow %s: %s has no %s\n", ARROW_VERSION_STRING,
                 library, symbol);
    std::abort();
  }
  return found;
}
