// A table of runs that is sorted and filtered in the browser.
export default {
  template: `
    <div class="records">
      <div class="above">
        <label><span class="unseen">Filter</span><input type="search" v-model="sought" placeholder="Filter" autocomplete="off" spellcheck="false"></label>
        <span class="soft" role="status">{{ said }}</span>
        <slot></slot>
      </div>
      <div class="scroll" tabindex="0" role="region" :aria-label="label">
        <table :class="{ dense: columns.length > 6 }">
          <thead><tr>
            <th class="pick"><span class="unseen">Choose</span></th>
            <th v-for="column in columns" :key="column.name" scope="col" :class="column.kind" :aria-sort="sorted(column)">
              <button type="button" @click="sort(column)" :title="column.title || null">{{ column.label }}<span class="arrow" aria-hidden="true">{{ arrow(column) }}</span></button>
            </th>
          </tr></thead>
          <tbody>
            <tr v-for="row in shown" :key="row.id" :class="[row.state, { picked: picked.includes(row.id) }]">
              <td class="pick"><input v-if="row.pickable !== false" type="checkbox" :checked="picked.includes(row.id)" @change="pick(row.id)" :aria-label="'Choose ' + row.title"></td>
              <template v-for="(column, i) in columns" :key="column.name">
                <th v-if="i === 0" scope="row">
                  <span class="name"><span v-if="row.look" v-html="swatch(row.look)"></span>
                    <span><a v-if="row.href" :href="row.href"><template v-for="part in parts(row.title)">{{ part }}<wbr></template></a><span v-else><template v-for="part in parts(row.title)">{{ part }}<wbr></template></span><small v-if="row.note"><template v-for="part in parts(row.note)">{{ part }}<wbr></template></small>
                      <span v-if="row.state" class="pill narrow" :class="row.state"><i aria-hidden="true"></i>{{ row.cells.state[1] }}</span>
                      <small v-if="row.reason" class="reason narrow">{{ row.reason }}</small></span></span>
                </th>
                <td v-else-if="column.kind === 'state'" class="state"><span class="pill" :class="row.state"><i aria-hidden="true"></i>{{ text(row, column) }}</span>
                  <progress v-if="row.part != null" :value="row.part" max="1" :aria-label="text(row, column)"></progress>
                  <small v-if="row.reason" class="reason">{{ row.reason }}</small></td>
                <td v-else :class="column.kind"><template v-if="column.kind === 'number'">{{ text(row, column) }}</template><template v-else v-for="part in parts(text(row, column))">{{ part }}<wbr></template></td>
              </template>
            </tr>
          </tbody>
        </table>
        <p v-if="!shown.length" class="soft none">{{ !read ? "Reading…" : rows.length ? "No row fits the filter." : empty }}</p>
      </div>
    </div>`,
  props: { columns: Array, label: String, empty: String },
  data() {
    return { rows: [], picked: [], sought: "", column: "", down: false, read: false };
  },
  computed: {
    shown() {
      const words = this.sought.toLowerCase().split(/\s+/).filter(Boolean);
      let rows = this.rows;
      if (words.length) rows = rows.filter((row) => { const all = this.everything(row); return words.every((word) => all.includes(word)); });
      if (!this.column) return rows;
      const value = (row) => row.cells[this.column]?.[0];
      const missing = (v) => v === null || v === undefined || v === "";
      return rows.map((row, i) => [row, i]).sort(([a, i], [b, j]) => {
        const [x, y] = [value(a), value(b)];
        // What has no value stands last, whichever way the rest is sorted.
        if (missing(x) || missing(y)) return missing(x) - missing(y) || i - j;
        const less = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
        return (this.down ? -less : less) || i - j;
      }).map(([row]) => row);
    },
    said() {
      return this.sought ? `${this.shown.length} of ${this.rows.length}` : "";
    },
  },
  methods: {
    fill(rows) {
      this.rows = rows;
      const ids = new Set(rows.map((row) => row.id));
      const left = this.picked.filter((id) => ids.has(id));
      if (left.length !== this.picked.length) this.choose(left);
      this.read = true;
    },
    everything(row) {
      return [row.title, row.note, row.reason, ...Object.values(row.cells).map((cell) => cell[1])].join(" ").toLowerCase();
    },
    text(row, column) {
      return row.cells[column.name]?.[1] ?? "";
    },
    // Long names break after punctuation, not within a word.
    parts(text) {
      return String(text).match(/[^\/_=.,-]*[\/_=.,-]+|[^\/_=.,-]+/g) ?? [];
    },
    sort(column) {
      if (this.column !== column.name) [this.column, this.down] = [column.name, column.kind === "number"];
      else this.down = !this.down;
    },
    sorted(column) {
      return this.column === column.name ? (this.down ? "descending" : "ascending") : "none";
    },
    arrow(column) {
      return this.column === column.name ? (this.down ? "↓" : "↑") : "";
    },
    pick(id) {
      this.choose(this.picked.includes(id) ? this.picked.filter((other) => other !== id) : [...this.picked, id]);
    },
    choose(ids) {
      this.picked = ids;
      this.$emit("picked", ids);
    },
    swatch(look) {
      return window.runs.swatch(look);
    },
  },
};
