// A model loaded for a command, and a session on it.
#include <algorithm>
#include <string>

#include "arguments.h"
#include "cli.h"
#include "options.h"

namespace kvik::cli {

namespace {

// A context that is chosen by memory is a multiple of it, so that it seldom changes from run to
// run.
constexpr int kContextStep = 256;

SessionOptions session_options(const EngineOptions& options, const ModelInfo& info, int context) {
  SessionOptions session;
  session.context = context;
  session.kv_format = options.kv.format();
  session.kv_protection = options.kv.protection(info);
  session.block_size = options.block_size;
  session.contiguous = options.layout == "contiguous";
  if (options.overflow == "window") session.overflow = Overflow::window;
  if (options.overflow == "shift") session.overflow = Overflow::shift;
  session.keep = options.keep;
  return session;
}

ModelCacheOptions cache_options(const EngineOptions& options, int context) {
  ModelCacheOptions cache;
  cache.block_size = options.block_size;
  cache.max_tokens = context;
  cache.max_batch_tokens = options.batch;
  cache.contiguous = options.layout == "contiguous";
  if (options.overflow == "window") cache.window = context;
  return cache;
}

// What -c says; without it the trained context, or the most that fits in memory, which is told.
Result<int> choose_context(const EngineOptions& options, const Model& header) {
  const int trained = header.info().context_length;
  if (options.context > 0) return options.context;
  if (options.context_option->count() > 0) return trained;
  const ModelCacheOptions cache = cache_options(options, trained);
  const int64_t room = memory_for_cache(options.kv);
  Result<int> most = largest_context(options.kv, header, cache, room);
  if (!most.ok() || *most >= trained) return trained;  // an error is said by what comes next
  // Memory that --mem gives is for the cache alone. Of the system's, the file's pages want a part:
  // they count as free until the weights are read; and other programs may take some meanwhile.
  const int64_t for_cache =
      options.kv.memory > 0 ? room : std::max(room / 8 * 7 - header.file().file_bytes(), room / 2);
  most = largest_context(options.kv, header, cache, for_cache);
  if (!most.ok()) return most;
  const int context = *most >= kContextStep ? *most / kContextStep * kContextStep : *most;
  if (context == 0 && options.kv.is_auto) return trained;  // refused with what each format takes
  if (context == 0) {
    return Status(StatusCode::out_of_memory,
                  format("not even one block of %d tokens fits in %s; choose a smaller format "
                         "(--kv) or free memory",
                         options.block_size, bytes_text(for_cache).c_str()));
  }
  note(
      format("a context of %d tokens, the most that fit in %s; the model was trained for %d (-c "
             "asks for another)",
             context, bytes_text(for_cache).c_str(), trained));
  return context;
}

// Settles options.kv, and refuses what the header alone can refuse.
Status check_against(EngineOptions& options, const Model& header, int context) {
  const ModelCacheOptions cache = cache_options(options, context);
  if (Status status = resolve(options.kv, header, cache); !status.ok()) return status;
  const KvFormat format = options.kv.format();
  Status status = check_keys(format.k, header.info().head_dim_k);
  if (status.ok()) status = check_values(format.v, header.info().head_dim_v);
  if (status.ok() && is_rotated(format.k)) status = check_calibration(options.kv, header);
  return status;
}

// A calibration that leaves keys as they are: with it a session can be tried out before keys are
// measured.
std::shared_ptr<const KeyCalibration> neutral_calibration(const KvOptions& options,
                                                          const ModelInfo& info) {
  KeyCalibration calibration;
  calibration.frame = options.frame;
  const auto size = static_cast<size_t>(info.num_kv_heads) * static_cast<size_t>(info.head_dim_k);
  LayerKeyCalibration layer;
  layer.centre.assign(size, 0.0F);
  layer.diagonal.assign(size, 1.0F);
  calibration.layers.assign(static_cast<size_t>(info.num_layers), layer);
  return std::make_shared<const KeyCalibration>(std::move(calibration));
}

}  // namespace

Result<Engine> make_engine(EngineOptions& options, const HeaderCheck& check_header) {
  Result<std::shared_ptr<const Model>> header = load_header(options.model);
  if (!header.ok()) return header.status();
  const ModelInfo info = header.value()->info();
  const Result<int> chosen = choose_context(options, **header);
  if (!chosen.ok()) return chosen.status();
  const int context = *chosen;
  if (Status status = check_against(options, **header, context); !status.ok()) return status;
  if (check_header) {
    if (Status status = check_header(**header, context); !status.ok()) return status;
  }

  Engine engine;
  ModelOptions model_options;
  model_options.num_threads = options.threads;
  Result<std::shared_ptr<const Model>> model = Model::load(options.model, model_options);
  if (!model.ok()) return model.status();
  engine.model = std::move(model).value();

  RunnerOptions runner_options;
  runner_options.num_threads = options.threads;
  runner_options.max_batch_tokens = options.batch;
  Result<std::unique_ptr<ModelRunner>> runner = ModelRunner::create(engine.model, runner_options);
  if (!runner.ok()) return runner.status();
  engine.runner = std::move(runner).value();

  SessionOptions session = session_options(options, info, context);
  if (is_rotated(session.kv_format.k) && options.kv.calibration != "off") {
    // What memory and the shift refuse is known before minutes are spent on measuring.
    session.key_calibration = neutral_calibration(options.kv, info);
    const Result<std::unique_ptr<Session>> trial = Session::create(engine.runner, session);
    if (!trial.ok()) return trial.status();
  }
  Result<std::shared_ptr<const KeyCalibration>> calibration =
      key_calibration(options.kv, *engine.runner);
  if (!calibration.ok()) return calibration.status();
  session.key_calibration = std::move(calibration).value();
  Result<std::unique_ptr<Session>> created = Session::create(engine.runner, session);
  if (!created.ok()) return created.status();
  engine.session = std::move(created).value();
  engine.session->set_cancel_flag(&Interrupt::flag());
  if (options.context > info.context_length) {
    warn(format("%s %d is more than the %d tokens that the model was trained for",
                name_given(*options.context_option).c_str(), options.context, info.context_length));
  }
  return engine;
}

}  // namespace kvik::cli
