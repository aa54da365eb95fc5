/** Bytes as text, and put together. */

const ENCODER = new TextEncoder();

export const utf8 = (text: string): Uint8Array<ArrayBuffer> => ENCODER.encode(text);

export function toHex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The bytes that hexadecimal digits stand for, undefined if these are none. */
export function fromHex(text: string): Uint8Array | undefined {
  if (text.length % 2 || /[^0-9a-f]/.test(text)) return undefined;
  return Uint8Array.from(text.match(/../g) ?? [], (digits) => Number.parseInt(digits, 16));
}

/** Bytes one after another, in memory of their own; text stands for its UTF-8. */
export function joined(...parts: (string | Uint8Array | number[])[]): Uint8Array<ArrayBuffer> {
  const all = parts.map((part) => (typeof part === "string" ? utf8(part) : part));
  const whole = new Uint8Array(all.reduce((size, part) => size + part.length, 0));
  let place = 0;
  for (const part of all) {
    whole.set(part, place);
    place += part.length;
  }
  return whole;
}

/** The lowest bytes of a whole number, the lowest first; negative numbers in two's complement. */
export function littleEndian(number: number | bigint, size: number): number[] {
  return Array.from({ length: size }, (_, place) => Number((BigInt(number) >> BigInt(8 * place)) & 255n));
}
