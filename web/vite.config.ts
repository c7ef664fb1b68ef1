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

export default defineConfig({
  // Relative addresses: the server states the base of the page, so the same files work under each path prefix.
  base: './',
  plugins: [compressed()],
  build: { manifest: true, outDir: OUT, emptyOutDir: true, assetsInlineLimit: 0, target: 'es2022', modulePreload: { polyfill: false } },
  worker: { format: 'es' },
  server: { proxy: { '/api': 'http://127.0.0.1:8080', '/auth': 'http://127.0.0.1:8080' } },
})
