/** Light, dark, or as the system. */
import { signal } from '@preact/signals'

export type Theme = 'auto' | 'light' | 'dark'
const KEY = 'paceline.theme'
const stored = localStorage.getItem(KEY)
export const theme = signal<Theme>(stored === 'light' || stored === 'dark' ? stored : 'auto')
/** Counts changes of colors: what draws on a canvas reads its colors again. */
export const palette = signal(0)

export function applyTheme(): void {
  theme.subscribe((value) => {
    if (value === 'auto') delete document.documentElement.dataset['theme']
    else document.documentElement.dataset['theme'] = value
    localStorage.setItem(KEY, value)
    palette.value++
  })
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => palette.value++)
}

export function isDark(): boolean {
  return theme.value === 'dark' || (theme.value === 'auto' && matchMedia('(prefers-color-scheme: dark)').matches)
}

/** The present value of a color variable, for a canvas. */
export function resolved(...names: string[]): string[] {
  const probe = document.createElement('span')
  document.body.append(probe)
  const found = names.map((name) => {
    probe.style.color = `var(${name})`
    return getComputedStyle(probe).color
  })
  probe.remove()
  return found
}
