// Builds dist/ (an ES module, and one plain script with the global `hubbub`), or with --tests the tests in build/.
import { readdirSync, rmSync } from "node:fs";
import { build } from "esbuild";

const common = { bundle: true, target: "es2022", legalComments: "none", logLevel: "warning" };
if (process.argv.includes("--tests")) {
  rmSync("build", { recursive: true, force: true });
  const entries = readdirSync("test").filter((name) => name.endsWith(".ts"));
  await build({
    ...common,
    entryPoints: entries.map((name) => `test/${name}`),
    outdir: "build/test",
    platform: "node",
    format: "esm",
    outExtension: { ".js": ".mjs" },
    external: ["esbuild"],
  });
} else {
  rmSync("dist", { recursive: true, force: true });
  const source = { ...common, entryPoints: ["src/index.ts"] };
  await build({ ...source, format: "esm", outfile: "dist/hubbub.js" });
  await build({
    ...common,
    entryPoints: ["src/node.ts"],
    platform: "node",
    format: "esm",
    outfile: "dist/node.js",
  });
  await build({
    ...source,
    format: "iife",
    globalName: "hubbub",
    minify: true,
    outfile: "dist/hubbub.min.js",
  });
}
