#include "fault.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "cores.h"

namespace tandem::emulation {

namespace {

char remembered[sizeof(Fault::text) + 64];

}  // namespace

void describe_core(const Core &which, char *text, size_t bytes) {
  if (which.type == CoreType::cube)
    std::snprintf(text, bytes, "AIC of block %u", which.block->index);
  else
    std::snprintf(text, bytes, "AIV %u of block %u", which.sub_block, which.block->index);
}

void fail(const char *name, const char *fix, const char *what, ...) {
  Fault fault{name, {}};
  size_t used = 0;
  if (current_core != nullptr) {
    describe_core(*current_core, fault.text, sizeof fault.text);
    used = std::strlen(fault.text);
    used += static_cast<size_t>(std::snprintf(fault.text + used, sizeof fault.text - used, ": "));
  }
  va_list arguments;
  va_start(arguments, what);
  std::vsnprintf(fault.text + used, sizeof fault.text - used, what, arguments);
  va_end(arguments);
  used = std::strlen(fault.text);
  std::snprintf(fault.text + used, sizeof fault.text - used, "; %s", fix);
  throw fault;
}

const char *last_fault() { return remembered; }

void remember_fault(const Fault &fault) {
  std::snprintf(remembered, sizeof remembered, "%s: %s", fault.name, fault.text);
}

}  // namespace tandem::emulation
