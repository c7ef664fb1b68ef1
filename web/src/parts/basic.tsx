/** Small parts of every page: buttons, times, notes, empty states. */
import type { ComponentChildren } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { now, moment, relative, duration as asText, elapsed, zoneName } from '../format'
import { t } from '../strings'
import { Icon, type IconName } from './icons'

interface ButtonProps {
  children?: ComponentChildren
  icon?: IconName
  kind?: 'first' | 'bad' | 'plain' | ''
  label?: string
  onClick?: (event: MouseEvent) => void
  disabled?: boolean
  type?: 'button' | 'submit'
  pressed?: boolean
  class?: string
}

export function Button({ children, icon, kind = '', label, onClick, disabled = false, type = 'button', pressed, class: extra = '' }: ButtonProps) {
  return (
    <button
      type={type}
      class={`button ${kind} ${children ? '' : 'icon'} ${extra}`}
      aria-label={label}
      title={children ? undefined : label}
      aria-pressed={pressed}
      disabled={disabled}
      onClick={onClick}
    >
      {icon && <Icon name={icon} />}
      {children}
    </button>
  )
}

/** A moment: relative, with the exact one as its title; or exact. */
export function Time({ at, exact = false, empty = '–' }: { at: string | null | undefined; exact?: boolean; empty?: string }) {
  if (!at) return <span class="dim">{empty}</span>
  return (
    <time dateTime={at} title={exact ? relative(at) : `${moment(at)} ${zoneName()}`} class="nowrap">
      {exact ? moment(at) : relative(at)}
    </time>
  )
}

/** How long something took, or has taken so far. */
export function Took({ start, end, open = true }: { start: string | null | undefined; end: string | null | undefined; open?: boolean }) {
  if (!start || (!end && !open)) return <span class="dim">–</span>
  if (!end) void now.value
  return <span class="num nowrap">{asText(elapsed(start, end))}</span>
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <h3>{title}</h3>
      {children}
    </div>
  )
}

export function Note({ kind = '', children }: { kind?: '' | 'good' | 'bad' | 'warn'; children: ComponentChildren }) {
  return (
    <div class={`note ${kind}`} role={kind === 'bad' ? 'alert' : undefined}>
      {children}
    </div>
  )
}

/** Bars where rows will be. They appear late, so that a fast answer causes no flicker. */
export function Skeleton({ rows = 6, height = 34 }: { rows?: number; height?: number }) {
  const [shown, show] = useState(false)
  useEffect(() => {
    const timer = setTimeout(() => show(true), 150)
    return () => clearTimeout(timer)
  }, [])
  return (
    <div class="stack" role="status" aria-busy="true" aria-label={t.loading} style={{ minHeight: `${rows * height}px`, padding: '10px' }}>
      {shown && Array.from({ length: rows }, (_, at) => <div key={at} class="skel" style={{ height: '14px', margin: `${(height - 22) / 2}px 0`, width: `${88 - ((at * 17) % 40)}%` }} />)}
    </div>
  )
}

export function Search({ value, onInput, placeholder, hint = true, width = 220 }: { value: string; onInput: (value: string) => void; placeholder: string; hint?: boolean; width?: number }) {
  const [text, setText] = useState(value)
  const timer = useRef<number | undefined>(undefined)
  const sent = useRef(value)
  useEffect(() => {
    if (value !== sent.current) {
      sent.current = value
      setText(value)
    }
  }, [value])
  return (
    <label class="search" style={{ width: `min(${width}px, 100%)` }}>
      <Icon name="search" />
      <input
        class="input"
        type="search"
        data-filter={hint ? '' : undefined}
        value={text}
        placeholder={placeholder}
        aria-label={placeholder}
        spellcheck={false}
        onInput={(event) => {
          const next = event.currentTarget.value
          setText(next)
          clearTimeout(timer.current)
          timer.current = window.setTimeout(() => {
            sent.current = next
            onInput(next)
          }, 180)
        }}
      />
    </label>
  )
}

export function Switch({ on, label, onChange, disabled = false }: { on: boolean; label: string; onChange: (on: boolean) => void; disabled?: boolean }) {
  return <input type="checkbox" role="switch" class="switch" checked={on} aria-label={label} title={label} disabled={disabled} onChange={(event) => onChange(event.currentTarget.checked)} />
}

export function Check({ on, children, onChange, label }: { on: boolean; children?: ComponentChildren; onChange: (on: boolean) => void; label?: string }) {
  return (
    <label class="check">
      <input type="checkbox" checked={on} aria-label={label} onChange={(event) => onChange(event.currentTarget.checked)} />
      {children}
    </label>
  )
}

/** As the ref of a row of links that scrolls: shows the link of the current page. */
export function currentInView(row: HTMLElement | null): void {
  const current = row?.querySelector<HTMLElement>('[aria-current]')
  if (row && current) row.scrollLeft = current.offsetLeft - row.offsetLeft - (row.clientWidth - current.offsetWidth) / 2
}

/** One of several, as a row of buttons. */
export function Segments<V extends string>({ value, options, onChange, label }: { value: V; options: readonly (readonly [V, ComponentChildren])[]; onChange: (value: V) => void; label: string }) {
  return (
    <div class="seg" role="group" aria-label={label}>
      {options.map(([name, text]) => (
        <button key={name} type="button" aria-pressed={name === value} onClick={() => onChange(name)}>
          {text}
        </button>
      ))}
    </div>
  )
}

export function Field({ label, hint, wrong, required = false, children }: { label: string; required?: boolean; hint?: string; wrong?: string | null; children: ComponentChildren }) {
  return (
    <label class="field">
      <span>{label}{required && <b class="wrong" aria-hidden="true"> *</b>}</span>
      {children}
      {wrong ? <span class="wrong" role="alert">{wrong}</span> : hint ? <span class="hint">{hint}</span> : null}
    </label>
  )
}

export function Copy({ text, label = t.copy }: { text: string; label?: string }) {
  const [done, setDone] = useState(false)
  return (
    <Button
      kind="plain"
      icon={done ? 'check' : 'copy'}
      label={done ? t.copied : label}
      onClick={() => {
        void navigator.clipboard?.writeText(text).then(() => {
          setDone(true)
          setTimeout(() => setDone(false), 1500)
        })
      }}
    />
  )
}
