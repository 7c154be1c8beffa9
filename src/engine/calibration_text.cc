// The text that keys are calibrated on: half prose, half code, about a thousand tokens each. It was
// written for this and is in no corpus.
#include "engine/calibration_text.h"

namespace kvik::internal {

std::string_view calibration_prose() {
  return R"text(The ferry to Sandholm leaves twice a day, at seven in the morning and a quarter past four in the afternoon, and everybody on the island arranges their lives around those two hours. Marit Olsen, who had kept the post office since 1987, used to say that nothing urgent had ever happened between sailings, and that if it had, it would have waited on the quay like everyone else.

On the last Thursday of October the afternoon boat came in late. A low grey swell was running from the north-west, and the deck hands had spread salt on the ramp, though it was not yet freezing. Three cars drove off, then a tractor with a trailer of roof tiles, and finally a tall young woman with a bicycle, a rucksack, and a cardboard box that she carried in both arms as if it were asleep.

"Is there somewhere I can stay?" she asked. "I wrote to the hotel, but nobody answered."

"The hotel has been closed for eleven years," said Marit. "Who told you there was a hotel?"

The woman put the box down very gently. "A book," she said. "My grandfather's. I suppose it is rather old."

What was in the box turned out to be a barometer: a brass one, as wide as a dinner plate, with a dial of white enamel and the words Stormy, Rain, Change, Fair and Very Dry written around it in a thin, slanting hand. It had belonged to the island's last pilot. For sixty years he had tapped the glass each morning with one knuckle, written the reading in a ledger, and decided whether the boats should go out. When he died the ledger went to the museum in the city and the instrument, by some accident of inheritance, to a cousin who lived four hundred kilometres from the sea.

People think of atmospheric pressure as something abstract. In fact the air above one square metre of ground weighs roughly ten tonnes, and we fail to notice only because it presses on us equally from every side. A fall of 24 hectopascals in as many hours is what sailors once called a bomb; in January 1993 a depression between Iceland and Norway reached 914, the lowest ever measured over that ocean. Against such numbers the needle of a household barometer hardly seems to move, yet a careful observer, reading it at the same hour every day, can foresee more than one would expect.

They hung it in the post office, between the timetable and the map of the depths. Within a week there was a small queue in the mornings. Nobody admitted that they came for the weather; there were telephones for that, with radar pictures and percentages. They bought stamps, asked after parcels, and on their way out touched the glass.

By December the young woman had rented the pilot's old house, learned to light its stove, and begun a ledger of her own. Her first entries are stiff and a little shy: "1012, steady. Wind SW 4. Nothing to report." Later they grow. She notes the geese, the price of herring, an argument about the harbour lights; she notes that Marit's brother predicted snow, was laughed at, and was right. On the ninth of February she writes only two lines. "978 and falling fast. I have told them to keep the boats in, and they have."

Whether that advice saved anyone cannot be proved, since a disaster which does not happen leaves no record. The council, however, voted in March to restore the office of pilot, unpaid, with the right to a free seat on either ferry. The minutes say that the motion was carried by seven votes to one. The dissenting member explained that he had nothing against the idea; he simply felt that there ought to be some opposition, or it would not look like a proper decision.

Dear Jonas,

Thank you for your letter and for the recipe, which I have now ruined twice. You write "a warm place" as though every kitchen had one. Mine has a window that does not shut and a cat who regards rising dough as furniture. The third attempt, on Sunday, was edible: 500 g of flour, 340 g of water, 10 g of salt, a spoonful of the starter, and eighteen hours of leaving it alone, which turns out to be the difficult ingredient. I baked it at 240 degrees for the first quarter of an hour and then lost my nerve.

You also asked about the lecture. There were perhaps forty people, most of them students, and one gentleman in the front row who slept with great dignity until the questions. The speaker's thesis was simple: languages do not decay, they are repaired while in use, like ships, by people who are busy going somewhere. I liked that. Somebody objected that ships sink. "Certainly," she answered, "but seldom because the crew had changed the sails."

Will you come in May? The chestnuts flower then, the trams run late, and my mother has promised not to talk about politics before dessert.

With love to all of you,
Agnes
)text";
}

std::string_view calibration_code() {
  return R"text(#!/usr/bin/env python3
"""Reads tide gauges and prints the next high water for each harbour."""
import csv
import math
from dataclasses import dataclass, field
from datetime import datetime, timedelta


@dataclass
class Gauge:
    name: str
    offset: float = 0.0
    samples: list[tuple[datetime, float]] = field(default_factory=list)

    def add(self, when, level):
        if level is None or math.isnan(level):
            raise ValueError(f"{self.name}: no level at {when:%Y-%m-%d %H:%M}")
        self.samples.append((when, level + self.offset))

    def peaks(self, width=3):
        values = [level for _, level in self.samples]
        for i in range(width, len(values) - width):
            around = values[i - width:i + width + 1]
            if values[i] == max(around) and values[i] > values[i - 1]:
                yield self.samples[i]


def read_gauges(path):
    gauges = {}
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter=";"):
            gauge = gauges.setdefault(row["harbour"], Gauge(row["harbour"]))
            gauge.add(datetime.fromisoformat(row["time"]), float(row["level_cm"]) / 100)
    return gauges


if __name__ == "__main__":
    for name, gauge in sorted(read_gauges("levels.csv").items()):
        last = list(gauge.peaks())[-1]
        print(f"{name:<12} {last[0] + timedelta(hours=12, minutes=25):%H:%M}  {last[1]:+.2f} m")

// ring_buffer.h
template <typename T, std::size_t N>
class RingBuffer {
 public:
  static_assert((N & (N - 1)) == 0, "N must be a power of two");

  bool push(T value) {
    const std::size_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_.load(std::memory_order_acquire) == N) return false;
    slots_[tail & (N - 1)] = std::move(value);
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  std::optional<T> pop() {
    const std::size_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return std::nullopt;
    T value = std::move(slots_[head & (N - 1)]);
    head_.store(head + 1, std::memory_order_release);
    return value;
  }

 private:
  std::array<T, N> slots_{};
  std::atomic<std::size_t> head_{0}, tail_{0};
};

/* Reverses the words of a line in place. */
static void reverse_words(char *line, size_t length)
{
    for (size_t begin = 0; begin < length;) {
        size_t end = begin;
        while (end < length && line[end] != ' ')
            end++;
        for (size_t i = begin, j = end; i + 1 < j; i++) {
            char c = line[i];
            line[i] = line[--j];
            line[j] = c;
        }
        begin = end + 1;
    }
}

SELECT h.name, COUNT(*) AS landings, SUM(l.kilos) AS total
FROM landings AS l
JOIN harbours AS h ON h.id = l.harbour_id
WHERE l.landed_on >= DATE '2024-09-01' AND l.species IN ('cod', 'herring')
GROUP BY h.name
HAVING SUM(l.kilos) > 5000
ORDER BY total DESC;

{
  "station": "sandholm-2",
  "position": {"lat": 59.1043, "lon": 10.9187},
  "sensors": [
    {"id": 17, "kind": "pressure", "unit": "hPa", "range": [870, 1085]},
    {"id": 18, "kind": "wind", "unit": "m/s", "range": [0, 60], "gust": true}
  ],
  "interval_s": 600
}

for file in logs/*.gz; do
  day=$(basename "$file" .gz)
  [ -s "out/$day.txt" ] && continue
  zcat "$file" | awk -F'\t' '$3 ~ /^E/ { count[$2]++ } END { for (k in count) print count[k], k }' \
    | sort -rn | head -n 20 > "out/$day.txt" || { echo "failed: $day" >&2; exit 1; }
done

export async function fetchForecast(station, { retries = 3, timeout = 5000 } = {}) {
  for (let attempt = 0; attempt <= retries; attempt++) {
    const controller = new AbortController();
    const timer = setTimeout(() => controller.abort(), timeout);
    try {
      const reply = await fetch(`/api/v2/forecast/${encodeURIComponent(station)}`, { signal: controller.signal });
      if (reply.ok) return await reply.json();
      if (reply.status < 500) throw new Error(`refused: ${reply.status}`);
    } finally {
      clearTimeout(timer);
    }
    await new Promise((done) => setTimeout(done, 200 * 2 ** attempt));
  }
  return null;
}
)text";
}

}  // namespace kvik::internal
