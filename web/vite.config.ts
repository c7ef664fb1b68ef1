import { constants, brotliCompressSync, gzipSync } from 'node:zlib'
import { readFileSync, readdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { defineConfig, type Plugin } from 'vite'

const OUT = join(dirname(fileURLToPath(import.meta.url)), '../scheduler/api/static')

/** Stores each file also compressed, so that web processes compress nothing. */
function compressed(): Plugin {
  return {
    name: 'compressed',
    apply: 'build',
    closeBundle() {
      const folder = join(OUT, 'assets')
      for (const name of readdirSync(folder)) {
        if (!/\.(js|css|svg)$/.test(name)) continue
        const content = readFileSync(join(folder, name))
        writeFileSync(join(folder, `${name}.gz`), gzipSync(content, { level: 9 }))
        writeFileSync(join(folder, `${name}.br`), brotliCompressSync(content, { params: { [constants.BROTLI_PARAM_QUALITY]: 11 } }))
      }
    },
  }
}

/** Lets the browser load the frame of all pages, and ask for the account, while it still loads the first script. */
function ahead(): Plugin {
  return {
    name: 'ahead',
    apply: 'build',
    transformIndexHtml: {
      order: 'post',
      handler(_, { bundle = {} }) {
        const chunks = new Map(Object.values(bundle).flatMap((one) => (one.type === 'chunk' ? [[one.fileName, one] as const] : [])))
        const frame = [...chunks.values()].find((one) => one.facadeModuleId?.endsWith('/src/main.tsx'))!
        const first = [...chunks.values()].find((one) => one.isEntry)!
        const files = new Set<string>()
        const add = (file: string) => void (files.has(file) || (files.add(file), chunks.get(file)!.imports.forEach(add)))
        add(frame.fileName)
        for (const known of [first.fileName, ...first.imports]) files.delete(known)
        return [
          { tag: 'link', attrs: { rel: 'preload', as: 'fetch', crossorigin: true, href: './api/v2/me' }, injectTo: 'head' },
          ...[...files].map((file) => ({ tag: 'link', attrs: { rel: 'modulepreload', crossorigin: true, href: `./${file}` }, injectTo: 'head' as const })),
        ]
      },
    },
  }
}

/** Parts that most pages show, and those of the pages of DAGs, runs and tasks: a file for each would cost a request for each. */
const TOGETHER = [
  // What the first script needs to load others, without their code.
  { name: 'load', test: /vite\/preload-helper/, priority: 3 },
  { name: 'parts', test: /node_modules\/(preact|@preact|openapi-fetch)|src\/(api|live)\/|src\/(format|states|strings)\.ts|src\/shell\/(router|session|theme)|src\/parts\/(basic|overlay|icons|Head|State|StateBar|Lazy|ViewOnly|Schedule|CountLink|Use|List)\.|src\/pages\/requests\./, priority: 2 },
  { name: 'views', test: /src\/(log|grid|graph\/(layouts|model))[/.]|src\/parts\/(ByFilter|chosen|Form|History|NoteForm|params|Secret|Trigger)\.|src\/pages\/(runList|Respond|AuditEntries|dag\/(TasksTab|useHeight)|task\/view)\./, minShareCount: 2, priority: 1 },
]

export default defineConfig({
  // Relative addresses: the server states the base of the page, so the same files work under each path prefix.
  base: './',
  plugins: [ahead(), compressed()],
  build: { manifest: true, outDir: OUT, emptyOutDir: true, assetsInlineLimit: 0, target: 'es2022', modulePreload: { polyfill: false }, rolldownOptions: { output: { codeSplitting: { groups: TOGETHER } } } },
  worker: { format: 'es' },
  server: { proxy: { '/api': 'http://127.0.0.1:8080', '/auth': 'http://127.0.0.1:8080' } },
})
