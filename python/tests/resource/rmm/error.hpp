/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What of librmm's header of this name ductile_rmm.hpp asks for.
 */
#ifndef STAND_IN_RMM_ERROR_HPP
#define STAND_IN_RMM_ERROR_HPP

#include <new>
#include <string>

namespace rmm {

class bad_alloc : public std::bad_alloc {
  public:
    explicit bad_alloc(const std::string &why) : why_("std::bad_alloc: " + why) {
    }
    const char *what() const noexcept override {
        return why_.c_str();
    }

  private:
    std::string why_;
};

class out_of_memory : public bad_alloc {
  public:
    explicit out_of_memory(const std::string &why) : bad_alloc("out_of_memory: " + why) {
    }
};

} // namespace rmm

#endif
