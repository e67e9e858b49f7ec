// Limits of the servers of Arrow Flight, which pyarrow has no setting for (decision 503).
//
// This definition of FlightServerBase::Init is found before Arrow's, as its library is loaded
// first. It goes on to Arrow's with a hook for the builder of gRPC's server. gRPC is inside
// Arrow's library and exports nothing, so the hook does what the inline functions of its headers
// do, by the layout of their classes. What can be checked of that layout is; when it is another,
// nothing is changed and `rezone_limits_state` says so.

#include <climits>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "arrow/flight/server.h"
#include "originals.h"

namespace {

enum State : int { kUnused = 0, kKept = 1, kOtherLayout = 2 };

int message_bytes_max = 0;
int calls_max = 0;
State state = kUnused;

// grpc_arg, of which only whole numbers are written here.
struct Argument {
  int type;
  const char* key;
  union {
    int integer;
    void* pointers[2];
  } value;
};
constexpr int kString = 0;
constexpr int kInteger = 1;

// The beginning of grpc::ChannelArguments.
struct Arguments {
  std::vector<Argument> all;
};

// grpc::ServerBuilderOption.
struct Option {
  virtual ~Option() = default;
  virtual void UpdateArguments(Arguments* arguments) = 0;
  virtual void UpdatePlugins(void* plugins) = 0;
};

// The beginning of grpc::ServerBuilder.
struct Builder {
  void* functions;
  int receive_bytes_max;
  int send_bytes_max;
  std::vector<std::unique_ptr<Option>> options;
};

// Whether memory that is taken for a vector can be one: three addresses in order, and few elements.
template <typename Element>
bool IsVector(const std::vector<Element>& found) {
  uintptr_t words[3];
  static_assert(sizeof found == sizeof words);
  std::memcpy(words, &found, sizeof words);
  constexpr uintptr_t most = 64 * sizeof(Element);
  return words[0] <= words[1] && words[1] <= words[2] && words[2] - words[0] <= most &&
         (words[1] - words[0]) % sizeof(Element) == 0 && words[0] % alignof(Element) == 0;
}

struct Limits : Option {
  void UpdateArguments(Arguments* arguments) override {
    auto& all = arguments->all;
    // gRPC's own constructor writes this one.
    if (!IsVector(all) || all.empty() || all.front().type != kString || all.front().key == nullptr ||
        std::strcmp(all.front().key, "grpc.primary_user_agent") != 0) {
      state = kOtherLayout;
      return;
    }
    Add(all, "grpc.per_message_decompression", 0);
    Add(all, "grpc.max_concurrent_streams", calls_max);
    state = kKept;
  }

  void UpdatePlugins(void*) override {}

 private:
  static void Add(std::vector<Argument>& all, const char* key, int value) {
    Argument added{};
    added.type = kInteger;
    added.key = key;
    added.value.integer = value;
    all.push_back(added);
  }
};

void Limit(void* found) {
  auto* builder = static_cast<Builder*>(found);
  // Flight has set the first one, nobody the second one, and there are few options.
  if (builder->receive_bytes_max != -1 || builder->send_bytes_max != INT_MIN ||
      !IsVector(builder->options)) {
    state = kOtherLayout;
    return;
  }
  builder->receive_bytes_max = message_bytes_max;
  builder->options.push_back(std::make_unique<Limits>());
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void rezone_limits_of_servers(int message_bytes,
                                                                                int calls) {
  message_bytes_max = message_bytes;
  calls_max = calls;
}

extern "C" __attribute__((visibility("default"))) int rezone_limits_state() { return state; }

// Of which Arrow the headers were: what is defined here must not be called with another.
extern "C" __attribute__((visibility("default"))) const char* rezone_limits_version() {
  return ARROW_VERSION_STRING;
}

namespace arrow::flight {

Status FlightServerBase::Init(const FlightServerOptions& options) {
  using Function = Status (FlightServerBase::*)(const FlightServerOptions&);
  static const Function original = [] {
    void* found = Original("libarrow_flight.so." ARROW_SO_VERSION,
                           "_ZN5arrow6flight16FlightServerBase4InitERKNS0_19FlightServerOptionsE");
    Function function{};
    std::memcpy(&function, &found, sizeof found);
    return function;
  }();
  if (message_bytes_max > 0) {
    // Whoever calls this from Python has made the options for this call.
    const_cast<FlightServerOptions&>(options).builder_hook = Limit;
  }
  return (this->*original)(options);
}

}  // namespace arrow::flight
