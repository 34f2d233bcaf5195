// Calls kernels of a library as they were recorded: LIBRARY CALLS RESULTS.
//
// CALLS holds 8-byte words in the byte order of the machine: the number of calls, and of each the
// length of its entry's name, the name in whole words, the number of arguments, and of each its
// kind (0: a number, 1: an array), then the number, or the array's bytes and the array in whole
// words. RESULTS gets of each call its status and then its arrays as the call left them.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tandem.h"

namespace {

struct Array {
  uint8_t *data;
  size_t bytes;
};

size_t whole(size_t bytes) { return (bytes + 7) / 8 * 8; }

[[noreturn]] void fail(const char *why) {
  std::fprintf(stderr, "%s\n", why);
  std::exit(1);
}

void read(std::FILE *file, void *to, size_t bytes) {
  if (std::fread(to, 1, bytes, file) != bytes) fail("the calls end too early");
}

int64_t read_word(std::FILE *file) {
  int64_t word;
  read(file, &word, sizeof word);
  return word;
}

Array read_array(std::FILE *file) {
  const size_t bytes = static_cast<size_t>(read_word(file));
  uint8_t *data = static_cast<uint8_t *>(std::aligned_alloc(64, (bytes + 64) / 64 * 64));
  if (!data) fail("no memory");
  read(file, data, whole(bytes));
  return {data, bytes};
}

const tandem_entry *kernels(const char *path) {
  void *library = dlopen(path, RTLD_NOW);
  if (!library) fail(dlerror());
  using GetApi = const tandem_api *(*)(uint32_t);
  const GetApi get_api = reinterpret_cast<GetApi>(dlsym(library, "tandem_get_api"));
  const tandem_api *api = get_api ? get_api(TANDEM_ABI_MAJOR) : nullptr;
  if (!api) fail("the library has another ABI");
  const tandem_set *set = api->sets;
  while (set->name && !set->usable) ++set;
  if (!set->name) fail("this machine has none of the library's instruction sets");
  std::printf("%s\n", set->name);
  return set->entries;
}

void run_call(const tandem_entry *entries, std::FILE *calls, std::FILE *results) {
  std::string name(whole(static_cast<size_t>(read_word(calls))), '\0');
  read(calls, name.data(), name.size());
  while (entries->name && std::strcmp(entries->name, name.c_str()) != 0) ++entries;
  if (!entries->name) fail(("no kernel " + name).c_str());
  std::vector<int64_t> words(static_cast<size_t>(read_word(calls)));
  std::vector<Array> arrays;
  for (int64_t &word : words) {
    if (read_word(calls)) {
      arrays.push_back(read_array(calls));
      word = static_cast<int64_t>(reinterpret_cast<intptr_t>(arrays.back().data));
    } else {
      word = read_word(calls);
    }
  }
  const int64_t status = entries->run(reinterpret_cast<const uint8_t *>(words.data()));
  std::fwrite(&status, sizeof status, 1, results);
  for (const Array &array : arrays) {
    std::fwrite(array.data, 1, array.bytes, results);
    std::free(array.data);
  }
}

}  // namespace

int main(int count, char **arguments) {
  if (count != 4) fail("usage: LIBRARY CALLS RESULTS");
  const tandem_entry *entries = kernels(arguments[1]);
  std::FILE *calls = std::fopen(arguments[2], "rb"), *results = std::fopen(arguments[3], "wb");
  if (!calls || !results) fail("cannot open the files");
  for (int64_t left = read_word(calls); left > 0; --left) run_call(entries, calls, results);
  return std::fclose(results) ? 1 : 0;
}
