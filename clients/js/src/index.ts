/** Private reports made where the record is. */
export { Client } from "./client.js";
export { Refused } from "./errors.js";
export { BudgetSpent, Ledger } from "./ledger.js";
export type { DeviceRecord, Summary } from "./record.js";
export { statement } from "./statement.js";
export { browserStore, type Store } from "./store.js";
export type { Labels } from "./strata.js";
export { type Period, Task } from "./task.js";
export { Uploader, type UploaderOptions } from "./uploader.js";
