/** Collection periods: what the one of a day is called. Days are those of the device's own calendar. */

import type { Period } from "./task.js";

/** Bytes of a period's name on a sealed report; a task without periods has nothing to tell apart. */
export const LABEL_BYTES: Record<Period, number> = { once: 0, day: 10, week: 8, month: 7 };

const DAY = 86_400_000;
const two = (number: number): string => String(number).padStart(2, "0");

/** The name of the collection period that a moment falls into. */
export function periodOf(period: Period, moment: Date): string {
  const [year, month, day] = [moment.getFullYear(), moment.getMonth(), moment.getDate()];
  if (period === "once") return "once";
  if (period === "month") return `${year}-${two(month + 1)}`;
  if (period === "day") return `${year}-${two(month + 1)}-${two(day)}`;
  // ISO weeks belong to the year that their Thursday is in. In UTC every day has as many hours as the next.
  const date = Date.UTC(year, month, day);
  const thursday = date + (3 - ((new Date(date).getUTCDay() + 6) % 7)) * DAY;
  const its = new Date(thursday).getUTCFullYear();
  return `${its}-W${two(1 + Math.floor((thursday - Date.UTC(its, 0, 1)) / DAY / 7))}`;
}
