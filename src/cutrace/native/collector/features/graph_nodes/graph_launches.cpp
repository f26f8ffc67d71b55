#include "graph_launches.h"

#include <atomic>
#include <vector>

namespace cutrace {
namespace {

// CUPTI makes this callback for all choices of kinds. It is unwatched after the first launch in a process.
class GraphLaunchWatch final : public Feature {
 public:
  void cupti_loaded(const CuptiLibrary& cupti, Callbacks& callbacks) override {
    callbacks_ = &callbacks;
    for (const ApiFunction& function : cupti.api_functions())
      if (function.name.find("GraphLaunch") != function.name.npos) calls_.push_back(function);
  }
  void attach(const AttachContext& context) override {
    if (!may_finalize() || !context.cupti.knows_finalize()) return;
    bool watched = !calls_.empty();
    for (const ApiFunction& call : calls_) watched = callbacks_->watch(*this, call.domain, call.id) && watched;
    if (!watched) may_finalize_.store(false);
  }
  void on_callback(CUpti_CallbackDomain, CUpti_CallbackId, const void*) noexcept override {
    may_finalize_.store(false);
    for (const ApiFunction& call : calls_) callbacks_->unwatch(*this, call.domain, call.id);
  }
  bool may_finalize() const override { return may_finalize_.load(); }

 private:
  Callbacks* callbacks_ = nullptr;
  std::vector<ApiFunction> calls_;
  std::atomic<bool> may_finalize_{true};
};

}  // namespace

Feature& graph_launches_feature() {
  static auto& feature = *new GraphLaunchWatch;
  return feature;
}

}  // namespace cutrace
