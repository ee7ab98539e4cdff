// The events of the timeline in typed arrays, sorted into tracks: a track is one row of one lane.
const MAX_EVENTS = 100000;

class TimelineModel {
  constructor(timeline) {
    this.timeline = timeline;
    const { events } = timeline;
    const columns = ["lane", "row", "start_ns", "dur_ns", "name", "category", "site"].map((key) => list(events[key]));
    this.ids = list(events.id);
    this.count = Math.min(columns[2].length, columns[3].length, MAX_EVENTS);
    [this.lane, this.row, this.start, this.duration, this.name, this.category, this.site] = columns.map((column, i) => {
      const array = new Float64Array(this.count);
      const missing = i >= 4 ? -1 : 0;
      for (let k = 0; k < this.count; k += 1) array[k] = isNumber(column[k]) ? column[k] : missing;
      return array;
    });
    this.first = Infinity;
    this.last = -Infinity;
    for (let i = 0; i < this.count; i += 1) {
      this.first = Math.min(this.first, this.start[i]);
      this.last = Math.max(this.last, this.start[i] + this.duration[i]);
    }
    if (!this.count) [this.first, this.last] = [0, 1];
    if (this.last <= this.first) this.last = this.first + 1;
    this.makeTracks();
    this.makeLinks();
    this.matches = null;
    this.matchCount = 0;
  }

  makeTracks() {
    const byKey = new Map();
    for (let i = 0; i < this.count; i += 1) {
      const key = this.lane[i] * 4096 + Math.min(4095, this.row[i]);
      if (!byKey.has(key)) byKey.set(key, []);
      byKey.get(key).push(i);
    }
    this.tracks = [...byKey.entries()]
      .sort(([a], [b]) => a - b)
      .map(([key, members]) => {
        members.sort((a, b) => this.start[a] - this.start[b] || this.duration[b] - this.duration[a]);
        // Ends of everything so far never decrease, which is what a binary search needs.
        const ends = new Float64Array(members.length);
        let end = -Infinity;
        members.forEach((i, k) => {
          end = Math.max(end, this.start[i] + this.duration[i]);
          ends[k] = end;
        });
        return { lane: Math.floor(key / 4096), row: key % 4096, members, ends };
      });
    this.trackOf = new Int32Array(this.count);
    this.placeOf = new Int32Array(this.count);
    this.tracks.forEach((track, t) =>
      track.members.forEach((i, k) => {
        this.trackOf[i] = t;
        this.placeOf[i] = k;
      }),
    );
    this.lanes = [...new Set(this.tracks.map((track) => track.lane))].map((index) => {
      const lane = object(this.timeline.lanes[index]);
      return { index, name: text(lane.name) || `Lane ${index}`, kind: lane.kind === "device" ? "device" : "host" };
    });
  }

  makeLinks() {
    this.links = new Map();
    const add = (a, b, forward) => {
      if (!this.links.has(a)) this.links.set(a, []);
      this.links.get(a).push({ event: b, forward });
    };
    this.timeline.from.forEach((a, k) => {
      const b = this.timeline.to[k];
      if (!(a >= 0 && a < this.count && b >= 0 && b < this.count)) return;
      add(a, b, true);
      add(b, a, false);
    });
  }

  nameOf(i) {
    return this.timeline.names[this.name[i]] ?? "(no name)";
  }

  categoryOf(i) {
    return this.timeline.categories[this.category[i]] ?? "other";
  }

  siteOf(i) {
    return object(this.timeline.sites[this.site[i]]);
  }

  laneOf(i) {
    return this.lanes.find((lane) => lane.index === this.lane[i]);
  }

  // First place in the track of an event that ends at or after the time.
  placeAt(track, when) {
    let low = 0;
    let high = track.ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (track.ends[middle] < when) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // The event under a time, or the nearest one that is at most `slack` away; -1: none.
  eventAt(track, when, slack) {
    let best = -1;
    let distance = slack;
    for (let k = this.placeAt(track, when - slack); k < track.members.length; k += 1) {
      const i = track.members[k];
      if (this.start[i] > when + slack) break;
      const away = Math.max(this.start[i] - when, when - this.start[i] - this.duration[i], 0);
      if (
        away < distance ||
        (away === distance && best < 0) ||
        (away === 0 && best >= 0 && this.duration[i] < this.duration[best])
      ) {
        best = i;
        distance = away;
      }
    }
    return best;
  }

  // The event of a track whose middle is nearest to a time.
  nearest(track, when) {
    let low = 0;
    let high = track.members.length - 1;
    const middleOf = (k) => this.start[track.members[k]] + this.duration[track.members[k]] / 2;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (middleOf(middle) < when) low = middle + 1;
      else high = middle;
    }
    return low > 0 && when - middleOf(low - 1) < middleOf(low) - when ? track.members[low - 1] : track.members[low];
  }

  search(query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    this.matchCount = 0;
    this.matches = null;
    if (!words.length) return;
    const { names, sites } = this.timeline;
    const lowered = names.map((name) => name.toLowerCase());
    const details = sites.map((site) =>
      [site.shapes, site.module, site.source, site.kernel]
        .map((item) => text(item) || "")
        .join("\n")
        .toLowerCase(),
    );
    const known = new Map();
    this.matches = new Uint8Array(this.count);
    for (let i = 0; i < this.count; i += 1) {
      const key = (this.name[i] + 1) * 1e6 + this.site[i];
      let found = known.get(key);
      if (found === undefined) {
        const all = `${lowered[this.name[i]] ?? ""}\n${details[this.site[i]] ?? ""}`;
        found = words.every((word) => all.includes(word));
        known.set(key, found);
      }
      if (found) {
        this.matches[i] = 1;
        this.matchCount += 1;
      }
    }
  }

  // The match after (or before) an event in the order of time; wraps around.
  nextMatch(from, direction) {
    if (!this.matchCount) return -1;
    let i = from < 0 ? (direction > 0 ? -1 : this.count) : from;
    for (let seen = 0; seen <= this.count; seen += 1) {
      i = (i + direction + this.count) % this.count;
      if (this.matches[i]) return i;
    }
    return -1;
  }

  // The longest events that lie at least partly in a range, and how many lie there.
  longestIn(start, end, limit, hidden) {
    const found = [];
    for (let i = 0; i < this.count; i += 1) {
      if (this.start[i] <= end && this.start[i] + this.duration[i] >= start && !hidden.has(this.lane[i])) found.push(i);
    }
    const total = found.length;
    found.sort((a, b) => this.duration[b] - this.duration[a] || a - b);
    return { total, events: found.slice(0, limit) };
  }
}
