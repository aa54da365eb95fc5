/** What the tests of ledger, outbox and sealing share. */
import { createHash } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after } from "node:test";
import { joined } from "../../src/bytes.js";
import { Task } from "../../src/index.js";

interface Vectors {
  batch: string;
  tasks: { [name: string]: string };
  sealed_bytes: { [name: string]: number };
  periods: string[][];
  hashes: [number, string][];
  bodies: [string, number, string][];
  keys: [string, string][];
  answers: [number, string, string, string][];
}

export const VECTORS: Vectors = JSON.parse(readFileSync("../../tests/vectors/delivery.json", "utf8"));

export function task(name: string): Promise<Task> {
  return Task.parse(new TextEncoder().encode(VECTORS.tasks[name]));
}

/** Bytes that everybody can make again. */
export function madeUp(size: number): Uint8Array {
  return size
    ? new Uint8Array(createHash("shake128", { outputLength: size }).update(String(size)).digest())
    : new Uint8Array();
}

/** A fresh path that is gone after the tests. */
export function freshPath(): string {
  const folder = mkdtempSync(join(tmpdir(), "hubbub-js-"));
  after(() => rmSync(folder, { recursive: true, force: true }));
  return join(folder, "ledger.json");
}

/** A collector that answers what the test says, and then that it has taken the batch. */
export class Fake {
  sent: {
    batch: string;
    body: Uint8Array;
    token: string | undefined;
    path: string | undefined;
    /** What it says of its stratum: labels and period. */
    said: unknown[];
  }[] = [];
  answers: ((batch: string, response: ServerResponse) => void)[] = [];
  address = "";
  readonly #server = createServer((request, response) => this.#answer(request, response));

  async start(port = 0): Promise<this> {
    await new Promise<void>((ready) => this.#server.listen(port, "127.0.0.1", ready));
    this.address = `http://127.0.0.1:${this.port}`;
    after(() => this.stop());
    return this;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  stop(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }

  #answer(request: IncomingMessage, response: ServerResponse): void {
    const parts: Uint8Array[] = [];
    request.on("data", (part) => parts.push(new Uint8Array(part)));
    request.on("end", () => {
      const batch = String(request.headers["hubbub-batch"]);
      const token = request.headers.authorization;
      const said = [request.headers["hubbub-labels"], request.headers["hubbub-period"]];
      this.sent.push({ batch, body: joined(...parts), token, path: request.url, said });
      (this.answers.shift() ?? own(200))(batch, response);
    });
  }
}

/** What a collector says of a batch, in its own words. */
export function own(status: number, headers: { [name: string]: string } = {}) {
  return (batch: string, response: ServerResponse): void => {
    const good = status === 200;
    response.writeHead(status, {
      "Content-Type": good ? "application/json" : "application/problem+json",
      ...headers,
    });
    response.end(JSON.stringify(good ? { batch, accepted: 1 } : { batch, status }));
  };
}
