/** What lies above a page: dialogs, menus, messages, and questions before something irreversible. */
import type { ComponentChildren } from 'preact'
import { signal } from '@preact/signals'
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks'
import { message } from '../api/client'
import { t } from '../strings'
import { Button, Note } from './basic'
import { Icon, type IconName } from './icons'

export function Dialog({ title, onClose, children, footer, wide = false, onSubmit, wrong = null }: { title: string; onClose: () => void; children: ComponentChildren; footer?: ComponentChildren; wide?: boolean; onSubmit?: () => void; wrong?: string | null }) {
  const ref = useRef<HTMLDialogElement>(null)
  // Before the next key is pressed, so that fast typing does not go to the page.
  useLayoutEffect(() => {
    const before = document.activeElement as HTMLElement | null
    ref.current?.showModal()
    // Not the button that closes it, which comes first.
    ref.current?.querySelector<HTMLElement>('.body input:not([type=checkbox]), .body select, .body textarea, footer [type=submit]')?.focus()
    return () => before?.focus?.()
  }, [])
  // The first field whose value is wrong may be out of view.
  const focusWrong = () => ref.current?.querySelector<HTMLElement>('[aria-invalid=true]')?.focus()
  useEffect(() => {
    if (wrong) focusWrong()
  }, [wrong])
  const content = (
    <>
      <header>
        <h2>{title}</h2>
        <Button kind="plain" icon="close" label={t.close} onClick={onClose} />
      </header>
      <div class="body">{children}</div>
      {wrong && <div class="dialog-wrong"><Note kind="bad">{wrong}</Note></div>}
      {footer && <footer>{footer}</footer>}
    </>
  )
  return (
    <dialog
      ref={ref}
      class={wide ? 'wide' : ''}
      aria-label={title}
      onCancel={(event) => {
        event.preventDefault()
        onClose()
      }}
      onMouseDown={(event) => event.target === ref.current && onClose()}
    >
      {onSubmit ? (
        <form
          style={{ display: 'contents' }}
          onSubmit={(event) => {
            event.preventDefault()
            onSubmit()
            requestAnimationFrame(focusWrong)
          }}
        >
          {content}
        </form>
      ) : (
        content
      )}
    </dialog>
  )
}

export interface MenuItem {
  text: string
  icon?: IconName
  act?: () => void
  href?: string
  bad?: boolean
}

export function Menu({ items, label, children, icon = 'more' }: { items: (MenuItem | null | false)[]; label: string; children?: ComponentChildren; icon?: IconName }) {
  const [open, setOpen] = useState(false)
  const ref = useRef<HTMLDivElement>(null)
  useEffect(() => {
    if (!open) return
    ref.current?.querySelector<HTMLElement>('li > *')?.focus()
    const close = (event: Event) => {
      if (!ref.current?.contains(event.target as Node)) setOpen(false)
    }
    document.addEventListener('mousedown', close)
    return () => document.removeEventListener('mousedown', close)
  }, [open])
  const move = (event: KeyboardEvent) => {
    const all = [...(ref.current?.querySelectorAll<HTMLElement>('li > *') ?? [])]
    const at = all.indexOf(document.activeElement as HTMLElement)
    if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
      event.preventDefault()
      all[(at + (event.key === 'ArrowDown' ? 1 : -1) + all.length) % all.length]?.focus()
    } else if (event.key === 'Escape') {
      event.stopPropagation()
      setOpen(false)
      ref.current?.querySelector<HTMLElement>('button')?.focus()
    }
  }
  return (
    <div class="menu" ref={ref} onKeyDown={open ? move : undefined}>
      <button type="button" class={`button ${children ? '' : 'icon'}`} aria-haspopup="menu" aria-expanded={open} aria-label={children ? undefined : label} title={label} onClick={() => setOpen(!open)}>
        {children ?? <Icon name={icon} />}
        {children && <Icon name="down" />}
      </button>
      {open && (
        <ul role="menu">
          {items.map(
            (item) =>
              item && (
                <li key={item.text} role="none" class={item.bad ? 'bad' : ''}>
                  {item.href ? (
                    <a role="menuitem" href={item.href} onClick={() => setOpen(false)}>
                      {item.icon && <Icon name={item.icon} />}
                      {item.text}
                    </a>
                  ) : (
                    <button
                      role="menuitem"
                      type="button"
                      onClick={() => {
                        setOpen(false)
                        item.act?.()
                      }}
                    >
                      {item.icon && <Icon name={item.icon} />}
                      {item.text}
                    </button>
                  )}
                </li>
              ),
          )}
        </ul>
      )}
    </div>
  )
}

interface Toast {
  id: number
  text: string
  bad: boolean
  link?: { text: string; href: string }
}
const toasts = signal<Toast[]>([])
let nextId = 0

export function toast(text: string, options: { bad?: boolean; link?: { text: string; href: string } } = {}): void {
  const id = nextId++
  toasts.value = [...toasts.value.slice(-3), { id, text, bad: options.bad ?? false, ...(options.link ? { link: options.link } : {}) }]
  setTimeout(() => drop(id), options.bad ? 15_000 : 6000)
}
const drop = (id: number) => (toasts.value = toasts.value.filter((one) => one.id !== id))

/** Do something that can fail, and show why it failed. Returns whether it succeeded. */
export async function attempt(work: () => Promise<unknown>): Promise<boolean> {
  try {
    await work()
    return true
  } catch (error) {
    toast(message(error), { bad: true })
    return false
  }
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((one) => (
        <div key={one.id} class={`toast ${one.bad ? 'bad' : ''}`}>
          <span class="grow" style={{ paddingBlock: '4px' }}>
            {one.text} {one.link && <a class="link" href={one.link.href} onClick={() => drop(one.id)}>{one.link.text}</a>}
          </span>
          <Button kind="plain" icon="close" label={t.close} onClick={() => drop(one.id)} />
        </div>
      ))}
    </div>
  )
}

interface Question {
  title: string
  text: string
  act: string
  kind: 'bad' | 'first'
  done: (yes: boolean) => void
}
const question = signal<Question | null>(null)

/** Ask before something that cannot be undone; `kind` tells whether it destroys something. */
export function confirm(title: string, text: string, act: string, kind: Question['kind'] = 'bad'): Promise<boolean> {
  return new Promise((resolve) => {
    question.value = {
      title,
      text,
      act,
      kind,
      done: (yes) => {
        question.value = null
        resolve(yes)
      },
    }
  })
}

export function Questions() {
  const asked = question.value
  if (!asked) return null
  return (
    <Dialog
      title={asked.title}
      onClose={() => asked.done(false)}
      onSubmit={() => asked.done(true)}
      footer={
        <>
          <Button onClick={() => asked.done(false)}>{t.cancel}</Button>
          <Button kind={asked.kind} type="submit">{asked.act}</Button>
        </>
      }
    >
      <p class="request-body">{asked.text}</p>
    </Dialog>
  )
}
