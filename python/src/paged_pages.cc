// The pages and codes of a PagedKVCache, out and in.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "cache_members.h"
#include "caches.h"
#include "errors.h"
#include "options.h"

namespace nb = nanobind;

namespace kvik::python {
namespace {

nb::tuple export_pages(PyPaged& held) {
  const std::optional<KvPages> pages =
      take(locked(held, [](PagedKVCache& c) { return c.export_pages(); }));
  if (!pages) return nb::make_tuple(nb::none(), nb::none());
  return nb::make_tuple(
      export_array(pages->key_cache, pages->owner, held.family, Access::read_only),
      export_array(pages->value_cache, pages->owner, held.family, Access::read_only));
}

void import_pages(PyPaged& held, const Arguments& a) {
  const InputArray keys = import_array(a.object("key_cache"), "key_cache", 4);
  const InputArray values = import_array(a.object("value_cache"), "value_cache", 4);
  const std::vector<int32_t> block_table = to_integers(a.object("block_table"), "block_table");
  const int64_t offset = a.integer("offset");
  check(locked(held, [&](PagedKVCache& cache) {
    return cache.import_pages(keys.view, values.view, block_table, offset);
  }));
  const auto family = keys.family ? keys.family : values.family;
  if (family) held.family = *family;
}

// A read-only array of bytes of rank 4 over memory that `owner` holds.
nb::object export_bytes(std::span<const std::byte> bytes, std::initializer_list<size_t> shape,
                        const std::shared_ptr<const void>& owner) {
  const nb::capsule keep(new std::shared_ptr<const void>(owner), [](void* p) noexcept {
    delete static_cast<std::shared_ptr<const void>*>(p);
  });
  return nb::cast(nb::ndarray<nb::numpy, const uint8_t>(bytes.data(), shape, keep));
}

const char* dtype_text(DType dtype) {
  return dtype == DType::f32 ? "float32" : dtype == DType::f16 ? "float16" : "bfloat16";
}

nb::object export_codes(PyPaged& held, const Arguments& a) {
  const KvCodeLayout layout = take(parse_kv_code_layout(a.text("layout", "rows")));
  const std::optional<KvCodes> codes =
      take(locked(held, [&](PagedKVCache& c) { return c.export_codes(layout); }));
  if (!codes) return nb::none();
  const KvArrayShape& shape = codes->shape;
  const auto batch = static_cast<size_t>(shape.batch);
  const auto heads = static_cast<size_t>(shape.num_kv_heads);
  const auto rows = static_cast<size_t>(codes->num_rows);
  const bool tiles = layout == KvCodeLayout::tiles;
  const size_t units = tiles ? (rows + kTileTokens - 1) / kTileTokens : rows;
  const auto array = [&](std::span<const std::byte> bytes) {
    const size_t count = batch * heads * units;
    const size_t unit = count == 0 ? 0 : bytes.size() / count;
    return tiles ? export_bytes(bytes, {batch, units, heads, unit}, codes->owner)
                 : export_bytes(bytes, {batch, heads, units, unit}, codes->owner);
  };
  nb::dict dict;
  dict["format"] =
      std::string(kv_code_name(codes->format.k)) + ":" + std::string(kv_code_name(codes->format.v));
  dict["layout"] = std::string(kv_code_layout_name(layout));
  dict["num_rows"] = codes->num_rows;
  dict["head_dim_k"] = shape.head_dim_k;
  dict["head_dim_v"] = shape.head_dim_v;
  dict["dtype_k"] = dtype_text(shape.dtype_k);
  dict["dtype_v"] = dtype_text(shape.dtype_v);
  dict["keys"] = array(codes->keys);
  dict["values"] = array(codes->values);
  return dict;
}

// What export_codes gave, or the like. The arrays keep the memory.
struct GivenCodes {
  KvCodes codes;
  ByteArray keys, values;
};
GivenCodes codes_of(const nb::dict& dict) {
  const auto item = [&](const char* name) {
    if (!dict.contains(name)) {
      throw nb::value_error(("codes need \"" + std::string(name) + "\"; see export_codes").c_str());
    }
    return nb::object(dict[name]);
  };
  const auto bytes = [&](const char* name) {
    return import_bytes(item(name), (std::string(name) + " of codes").c_str(), 4);
  };
  GivenCodes given{{}, bytes("keys"), bytes("values")};
  KvCodes& codes = given.codes;
  codes.format = take(parse_kv_format(to_text(item("format"), "format")));
  codes.layout = take(parse_kv_code_layout(to_text(item("layout"), "layout")));
  codes.num_rows = to_integer(item("num_rows"), "num_rows");
  const int heads_at = codes.layout == KvCodeLayout::rows ? 1 : 2;
  codes.shape = {static_cast<int64_t>(given.keys.shape(0)),
                 static_cast<int64_t>(given.keys.shape(static_cast<size_t>(heads_at))),
                 to_integer(item("head_dim_k"), "head_dim_k"),
                 to_integer(item("head_dim_v"), "head_dim_v"),
                 parse_dtype(item("dtype_k")),
                 parse_dtype(item("dtype_v"))};
  for (const size_t d : {0, 1, 2}) {
    if (given.keys.shape(d) != given.values.shape(d)) {
      throw nb::value_error("keys and values of codes differ in their first three dimensions");
    }
  }
  const auto span = [](const ByteArray& array) {
    return std::as_bytes(std::span<const uint8_t>(array.data(), array.size()));
  };
  codes.keys = span(given.keys);
  codes.values = span(given.values);
  return given;
}

void import_codes(PyPaged& held, const Arguments& a) {
  const nb::object codes = a.object("codes");
  if (!nb::isinstance<nb::dict>(codes)) {
    throw nb::type_error(("codes must be a dict as export_codes gives, not " +
                          std::string(nb::type_name(codes.type()).c_str()))
                             .c_str());
  }
  const GivenCodes given = codes_of(nb::borrow<nb::dict>(codes));
  check(locked(held, [&](PagedKVCache& cache) { return cache.import_codes(given.codes); }));
}

std::vector<int32_t> block_table(PyPaged& held, const Arguments& a) {
  const int64_t batch_row = a.integer("batch_row", 0);
  std::vector<int32_t> table;
  const int64_t batch = locked(held, [&](PagedKVCache& cache) -> int64_t {
    const auto shape = cache.shape();
    if (shape && batch_row >= 0 && batch_row < shape->batch) table = cache.block_table(batch_row);
    return shape ? shape->batch : 0;
  });
  if (batch_row < 0 || batch_row >= batch) {
    throw nb::index_error(("batch row " + std::to_string(batch_row) + " is not one of the " +
                           std::to_string(batch) + " of the cache")
                              .c_str());
  }
  return table;
}

}  // namespace

void add_page_members(nb::class_<PyPaged>& cls) {
  using Cache = PagedKVCache;
  cls.def_prop_ro("block_size", reader<Cache>([](Cache& c) { return c.block_size(); }),
                  "Tokens of a block.")
      .def_prop_ro("num_blocks", reader<Cache>([](Cache& c) { return c.num_blocks(); }),
                   "Blocks of each batch row: the capacity.")
      .def_prop_ro("allocated_blocks",
                   reader<Cache>([](Cache& c) { return c.paged_stats().allocated_blocks; }),
                   "Blocks that hold rows of this cache, over all batch rows.")
      .def_prop_ro("turboquant",
                   reader<Cache>([](Cache& c) { return c.options().turboquant.has_value(); }),
                   "Whether rows are stored by TurboQuant.")
      .def_prop_ro("kv_quant", reader<Cache>([](Cache& c) {
                     return c.options().kv_quant.has_value() && !c.options().turboquant;
                   }),
                   "Whether rows are stored by KV-Quant.")
      .def_prop_ro(
          "_rows_kind",
          [](PyPaged& held) -> nb::object {
            const auto shape = locked(held, [](Cache& c) { return c.shape(); });
            if (!shape) return nb::none();
            return nb::make_tuple(shape->batch, shape->num_kv_heads, shape->head_dim_k,
                                  shape->head_dim_v, dtype_text(shape->dtype_k),
                                  dtype_text(shape->dtype_v));
          },
          nb::sig("def _rows_kind(self) -> tuple[int, int, int, int, str, str] | None"),
          "What the first write has fixed: B, H_kv, Dk, Dv and the dtypes.")
      .def_prop_ro(
          "key_cache", [](PyPaged& held) { return nb::object(export_pages(held)[0]); },
          nb::sig("def key_cache(self) -> kvik._types.Array | None"),
          "A copy of the pages of the keys, [B * num_blocks, block_size, H_kv, Dk], decoded where "
          "they are stored in low bits, slots without a row zero; None before the first write.")
      .def_prop_ro(
          "value_cache", [](PyPaged& held) { return nb::object(export_pages(held)[1]); },
          nb::sig("def value_cache(self) -> kvik._types.Array | None"),
          "As key_cache, of the values.");
  def_method(
      cls, "def export_pages(self) -> tuple[kvik._types.Array | None, kvik._types.Array | None]",
      [](PyPaged& held, const Arguments&) { return export_pages(held); },
      "(key_cache, value_cache).");
  def_method(
      cls,
      "def import_pages(self, key_cache: kvik._types.ArrayLike, value_cache: "
      "kvik._types.ArrayLike, block_table: collections.abc.Sequence[int], offset: int) -> None",
      &import_pages,
      "Replaces all rows by the first offset tokens of pages [num_pages, block_size, H_kv, D]. "
      "block_table: the pages of batch row 0, then of row 1, and so on, ceil(offset / "
      "block_size) each.\n\nRaises ValueError for what does not fit; then nothing was changed.");
  def_method(
      cls, "def export_codes(self, layout: str = 'rows') -> dict[str, object] | None",
      &export_codes,
      "The rows as they are stored, without rounding; None before the first write: format "
      "(\"q8:q8\"), layout, num_rows, head_dim_k, head_dim_v, dtype_k, dtype_v, and the uint8 "
      "arrays keys and values. layout \"rows\": [B, H_kv, num_rows, row bytes], rows as "
      "kvik.encode gives them; \"tiles\": [B, ceil(num_rows / 16), H_kv, tile bytes], as the "
      "pages hold them.");
  def_method(
      cls, "def import_codes(self, codes: dict[str, object]) -> None", &import_codes,
      "Replaces all rows by what export_codes gave, exactly.\n\nRaises ValueError for another "
      "format than this cache's, for sizes that do not fit and for rows that stand for values "
      "which are not finite; then nothing was changed.");
  def_method(cls, "def block_table(self, batch_row: int = 0) -> list[int]", &block_table,
             "Page of each block of a batch row. Raises IndexError.");
}

}  // namespace kvik::python
