/** What a device that runs Node gets: all that a browser gets, and a store in a file. */
export { FileStore } from "./file_store.js";
export * from "./index.js";
