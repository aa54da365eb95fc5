/** The package as it is published: what is in it, how large it is, and that it works once it is unpacked. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { createContext, runInContext } from "node:vm";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";
import { vectors } from "./tape.js";

const [{ document: DOCUMENT }] = vectors("reports.json").tasks as { document: string }[];
let folder: string;
let unpacked: string;

before(() => {
  folder = mkdtempSync(join(tmpdir(), "hubbub-"));
  execFileSync("npm", ["pack", "--silent", "--pack-destination", folder], { stdio: "pipe" });
  const [archive] = readdirSync(folder);
  unpacked = join(folder, "node_modules", "hubbub-client");
  mkdirSync(unpacked, { recursive: true });
  execFileSync("tar", ["-xzf", join(folder, archive), "--strip-components", "1", "-C", unpacked]);
});
after(() => rmSync(folder, { recursive: true, force: true }));

test("the package has what it promises, and depends on nothing", () => {
  const about = JSON.parse(readFileSync(join(unpacked, "package.json"), "utf-8"));
  assert.equal(about.dependencies, undefined);
  for (const file of [
    "LICENSE",
    "README.md",
    "dist/hubbub.js",
    "dist/hubbub.min.js",
    "dist/types/index.d.ts",
  ]) {
    assert.ok(readFileSync(join(unpacked, file)).length > 100, file);
  }
});

test("a program that installed it can report", () => {
  writeFileSync(
    join(folder, "program.mjs"),
    `import { Client, Task } from "hubbub-client";
     const task = await Task.parse(new TextEncoder().encode(process.argv[2]));
     console.log(new Client(task).report(["1", "2"]).length, task.reportBytes);`,
  );
  const said = execFileSync(process.execPath, ["program.mjs", DOCUMENT], { cwd: folder, encoding: "utf-8" });
  const [length, promised] = said.trim().split(" ");
  assert.equal(length, promised);
});

test("the plain script sets one global, and needs neither eval nor WebAssembly", async () => {
  const script = readFileSync(join(unpacked, "dist", "hubbub.min.js"), "utf-8");
  assert.doesNotMatch(script, /\beval\b|\bFunction\(|WebAssembly|import\(/);
  const page = createContext(
    { TextEncoder, TextDecoder, crypto, Uint8Array, ArrayBuffer },
    { codeGeneration: { strings: false, wasm: false } },
  );
  const before = Object.keys(page);
  runInContext(script, page);
  const added = runInContext("Object.keys(globalThis).join()", page).split(",") as string[];
  assert.deepEqual(
    added.filter((name) => !before.includes(name)),
    ["hubbub"],
  );
  page.bytes = new TextEncoder().encode(DOCUMENT);
  const bytes = await runInContext(
    'hubbub.Task.parse(bytes).then((task) => [new hubbub.Client(task).report(["1"]).length, task.reportBytes])',
    page,
  );
  assert.equal(bytes[0], bytes[1]);
});

/** Bytes of what these names take, minified and compressed. */
async function size(names: string): Promise<number> {
  const contents = `export { ${names} } from "./src/index.js";`;
  const bundled = await build({
    stdin: { contents, resolveDir: ".", loader: "ts" },
    bundle: true,
    minify: true,
    write: false,
    format: "esm",
    target: "es2022",
  });
  return gzipSync(bundled.outputFiles[0].contents, { level: 9 }).length;
}

test("it is small", async (context) => {
  const [core, all] = [
    await size("Client, Refused, Task"),
    await size("Client, Refused, Task, Ledger, Uploader"),
  ];
  const script = gzipSync(readFileSync(join(unpacked, "dist", "hubbub.min.js")), { level: 9 }).length;
  context.diagnostic(
    `gzip: reports ${core} bytes, with ledger, uploader and sealing ${all}, the script ${script}`,
  );
  assert.ok(core <= 10_000, `${core} bytes`);
  assert.ok(all <= 16_000, `${all} bytes`);
});

test("the document of a thousand keys is below 40 kB", () => {
  const document = JSON.parse(DOCUMENT);
  const told = JSON.parse(document.task);
  told.keys.vocabulary = Array.from({ length: 1000 }, (_, at) => `search/topic number ${at}`);
  document.task = JSON.stringify(told);
  assert.ok(JSON.stringify(document).length < 40_000);
});
