/**
 * Prints the exact laws of reports: reads {document, record, seed} one per line, writes [[bytes, over, under, double]].
 * What is enumerated is what ships: the whole way from the record to the bytes.
 */
import { createInterface } from "node:readline";
import { privatize } from "../src/client.js";
import { emptySummary } from "../src/record.js";
import { Enumeration, fixedSeeds, hex, taskOf } from "./tape.js";

for await (const line of createInterface({ input: process.stdin })) {
  const { document, record, seed } = JSON.parse(line);
  const task = await taskOf(document);
  const held = new Map<string, number>(record);
  const law = new Enumeration().law((coins) =>
    hex(privatize(task, held, coins, fixedSeeds(seed), emptySummary())),
  );
  console.log(JSON.stringify(law));
}
