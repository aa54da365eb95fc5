/** Private reports made where the record is. */
export { Client } from "./client.js";
export { Refused } from "./errors.js";
export type { DeviceRecord, Summary } from "./record.js";
export { type Period, Task } from "./task.js";
