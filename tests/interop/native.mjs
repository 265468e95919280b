// Values that only JavaScript has, as its programs publish them; the Python test says what must arrive.

class Point {
  #hidden = 1;
  x = 1;
  get y() {
    return this.#hidden;
  }
}

export const NATIVE = {
  undefined_member: { a: 1, b: undefined, c: [undefined, 1] },
  not_a_number: [NaN, Infinity, -Infinity],
  negative_zero: -0,
  date: new Date(1767225600123),
  map_set_error: [new Map([[1, 2]]), new Set([1]), new Error("gone")],
  instance: new Point(),
  half_emoji: ["\u{1f44b}"[0], "\u{1f44b}"[1]],
  control: "\u0000\u001f\u007f\u2028\u2029\ufeff",
  integers: [2 ** 53 - 1, -(2 ** 53 - 1), 2 ** 53 + 2, 1e21, 5e-324, 1.7976931348623157e308],
  number_like_keys: { 10: "b", 9: "a", __proto: null, "": "empty" },
  bytes: new Uint8Array([1, 2]),
  bytes_of_node: Buffer.from("hi"),
  to_json: { toJSON: () => "own form" },
};
